"""The heartbeat's one statement: renew by token, and learn what has changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from jobqueue.store.leadership import HELD
from jobqueue.versions import TIMED


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to one heartbeat."""

    renewed: frozenset[UUID]
    busy: frozenset[UUID]  # still ours, but locked by another session: renewed at the next beat
    cancelled: frozenset[UUID]  # of those still ours: an operator requested a cancel
    died_at: Any  # this process was certified dead
    registered: bool
    leader_vacant: bool
    overdue: bool  # a scheduled job should have become ready by now
    silent: bool  # a worker on this machine has missed its beat: see DeadWorkerDetector


# Never waits for a row lock, not even on the worker's own row: a lock held by an operator's session
# must not delay the renewals.
# The lease columns stand in no index, so a renewal is a heap-only update.
BEAT = f"""
WITH input AS (
    SELECT * FROM json_to_recordset(%(held)s::json)
        AS t(id bigint, token uuid, not_ending double precision)
), held AS MATERIALIZED (
    SELECT j.id, j.lease_token, j.cancel_requested_at IS NOT NULL AS cancelled
    FROM jobqueue_job j
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.lease_token = ANY(%(tokens)s::uuid[])
), locked AS MATERIALIZED (
    SELECT j.id, j.lease_token FROM jobqueue_job j
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.lease_token = ANY(%(tokens)s::uuid[])
    ORDER BY j.id
    FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE jobqueue_job j SET
        lease_expires_at = clock_timestamp() + %(lease)s * interval '1 second',
        not_ending_since = CASE WHEN t.not_ending IS NULL THEN j.not_ending_since
            ELSE COALESCE(j.not_ending_since,
                clock_timestamp() - t.not_ending * interval '1 second') END
    FROM input t
    JOIN locked l ON l.id = t.id AND l.lease_token = t.token
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = l.id AND j.lease_token = l.lease_token
    RETURNING j.lease_token
), seen AS (
    UPDATE jobqueue_worker SET
        last_seen_at = clock_timestamp(), phase = %(phase)s, wake = %(wake)s,
        idle_reason = %(idle)s, signals_dropped = %(dropped)s
    WHERE id = (SELECT id FROM jobqueue_worker WHERE id = %(worker)s FOR NO KEY UPDATE SKIP LOCKED)
)
SELECT
    ARRAY(SELECT lease_token FROM renewed) AS renewed,
    ARRAY(SELECT lease_token FROM held) AS held,
    ARRAY(SELECT lease_token FROM held WHERE cancelled) AS cancelled,
    (SELECT died_at FROM jobqueue_worker WHERE id = %(worker)s) AS died_at,
    EXISTS (SELECT FROM jobqueue_worker WHERE id = %(worker)s) AS registered,
    NOT EXISTS (SELECT FROM jobqueue_leaderlease l WHERE l.name = 'maintenance'
        AND {HELD}) AS leader_vacant,
    EXISTS (
        SELECT FROM jobqueue_worker w
        JOIN jobqueue_worker me ON me.id = %(worker)s AND me.boot_id <> ''
            AND w.boot_id = me.boot_id AND w.pid_namespace = me.pid_namespace
            AND w.time_namespace = me.time_namespace
        WHERE w.id <> me.id AND w.died_at IS NULL AND w.phase <> 'STOPPED'
          AND w.last_seen_at <= now() - %(silence)s * interval '1 second'
    ) AS silent,
    EXISTS (
        SELECT FROM jobqueue_job
        WHERE {TIMED} AND run_at <= now() - interval '1 second'
          AND (hold_until IS NULL OR hold_until <= now())
    ) AS overdue
"""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """What a beat says about one claim. `not_ending`: seconds since its stop request."""

    id: int
    token: UUID
    not_ending: float | None = None


async def beat(
    connection: AsyncConnection[Any],
    worker: UUID,
    held: Sequence[HeldLease],
    *,
    lease: float,
    leader_lease: float,
    phase: str,
    wake: str,
    idle: str = "",
    dropped: int = 0,
    silence: float = 7.0,
) -> Beat:
    """Renew every claim that this process holds, and learn what has changed.

    The leases in seconds. `silence`: seconds after which a neighbour has missed its beat.
    """
    rows = [{"id": h.id, "token": str(h.token), "not_ending": h.not_ending} for h in held]
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        BEAT,
        {
            "held": json.dumps(rows),
            "ids": [h.id for h in held],
            "tokens": [h.token for h in held],
            "worker": worker,
            "lease": lease,
            "leader_lease": leader_lease,
            "alive": lease,
            "phase": phase,
            "wake": wake,
            "idle": idle,
            "dropped": dropped,
            "silence": silence,
        },
    )
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101  (a SELECT without FROM)
    renewed, still_held, cancelled, died_at, registered, leader_vacant, silent, overdue = row
    return Beat(
        renewed=frozenset(renewed),
        busy=frozenset(still_held) - frozenset(renewed),
        cancelled=frozenset(cancelled),
        died_at=died_at,
        registered=registered,
        leader_vacant=leader_vacant,
        silent=silent,
        overdue=overdue,
    )
