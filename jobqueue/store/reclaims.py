"""Jobs whose holder is gone: their leases have lapsed, or its death is certified."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from jobqueue.store.batches import Swept
from jobqueue.versions import OURS

Connection = AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A RUNNING job whose holder's claim no longer counts."""

    id: int
    token: UUID
    task: str
    options: str  # as JSON: one that cannot be read must not stop the others
    failures: int


# `skip` names rows that the database refused to change; they must not block the others.
LAPSED = f"""
SELECT j.id, j.lease_token AS token, j.task, j.options::text AS options, j.failures
FROM jobqueue_job j
WHERE j.state = 'RUNNING' AND {OURS} AND j.id <> ALL(%(skip)s::bigint[])
  AND (j.lease_expires_at <= now()
       OR EXISTS (SELECT FROM jobqueue_worker w WHERE w.id = j.worker AND w.died_at IS NOT NULL))
ORDER BY j.worker
LIMIT %(limit)s
FOR NO KEY UPDATE OF j SKIP LOCKED
"""


async def lapsed(connection: Connection, limit: int, skip: Collection[int] = ()) -> list[Lapsed]:
    """Return jobs whose lease has lapsed, or whose holder is certified dead."""
    cursor = connection.cursor(row_factory=class_row(Lapsed))
    await cursor.execute(LAPSED, {"limit": limit, "skip": list(skip)})
    return await cursor.fetchall()


# What was lost twice in a row is a suspect: it may have killed its process. A job of one or two
# attempts ends before it can be one; its reason names what was lost beside it.
# The condition is checked again on the locked row: a renewal may have come in between, and a
# claim sent by a dead process may have executed after its death was certified.
RECLAIM = f"""
WITH input AS (
    SELECT * FROM json_to_recordset(%(input)s::json)
        AS t(id bigint, token uuid, delay double precision)
), locked AS MATERIALIZED (
    SELECT j.id, j.lease_token, j.worker, j.claimed_at, j.attempts, j.failures, j.max_attempts,
        j.expires_at, j.cancel_requested_at, j.lease_expires_at <= now() AS lapsed,
        EXISTS (SELECT FROM jobqueue_attempt a
            WHERE a.job_id = j.id AND a.number = j.attempts AND a.outcome = 'LOST') AS again
    FROM jobqueue_job j
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.lease_token = ANY(%(tokens)s::uuid[]) AND {OURS}
      AND (j.lease_expires_at <= now()
           OR EXISTS (SELECT FROM jobqueue_worker w
               WHERE w.id = j.worker AND w.died_at IS NOT NULL))
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
), verdict AS MATERIALIZED (
    SELECT m.*, t.token, t.delay, clock_timestamp() AS at,
        CASE WHEN m.lapsed THEN 'its lease lapsed' ELSE 'its death was certified' END AS why,
        CASE
            WHEN m.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
            WHEN m.failures + 1 >= m.max_attempts THEN 'DEAD'
            WHEN m.expires_at <= clock_timestamp() + t.delay * interval '1 second' THEN 'DEAD'
            WHEN t.delay > 0 THEN 'SCHEDULED'
            ELSE 'READY'
        END AS state
    FROM input t JOIN locked m ON m.id = t.id AND m.lease_token = t.token
), written AS (
    UPDATE jobqueue_job j SET
        state = v.state,
        reason = CASE
            WHEN v.state = 'CANCELLED' THEN 'cancelled after its worker was lost'
            WHEN v.state = 'DEAD' AND v.failures + 1 < v.max_attempts THEN 'expired'
            WHEN v.state = 'DEAD' AND v.max_attempts <= 2 THEN 'worker lost' || COALESCE((
                SELECT ' with jobs ' || string_agg(o.id::text, ', ') FROM (
                    SELECT id FROM jobqueue_job
                    WHERE state = 'RUNNING' AND worker = v.worker AND id <> v.id
                    ORDER BY id LIMIT 20) o), '')
            WHEN v.state = 'DEAD' THEN 'worker lost'
            ELSE 'retry'
        END,
        run_at = CASE WHEN v.state = 'SCHEDULED'
            THEN v.at + v.delay * interval '1 second' ELSE j.run_at END,
        attempts = j.attempts + 1,
        failures = j.failures + 1,
        suspect = v.again AND v.state IN ('SCHEDULED', 'READY'),
        last_error = 'jobqueue.exceptions.WorkerLost: worker ' || v.worker || ': ' || v.why,
        finished_at = CASE WHEN v.state IN ('DEAD', 'CANCELLED') THEN v.at END,
        worker = NULL, lease_token = NULL, lease_expires_at = NULL, claimed_at = NULL,
        not_ending_since = NULL, parked_at = NULL
    FROM verdict v
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = v.id AND j.lease_token = v.lease_token
    RETURNING j.id, j.task, j.queue, j.state, j.reason, j.attempts, j.failures, j.run_at
), history AS (
    INSERT INTO jobqueue_attempt (token, job_id, number, worker, outcome, started_at, finished_at,
        error_class, error_message, recorded_by)
    SELECT v.token, v.id, v.attempts + 1, v.worker, 'LOST', v.claimed_at, v.at,
        'jobqueue.exceptions.WorkerLost', 'worker ' || v.worker || ': ' || v.why, 'leader'
    FROM verdict v
    ON CONFLICT DO NOTHING
), trail AS (
    INSERT INTO jobqueue_jobevent (job, at, kind, actor, note)
    SELECT v.id, v.at, 'reclaim', %(actor)s, 'worker ' || v.worker || ': ' || v.why
    FROM verdict v
)
SELECT w.id, w.task, w.queue, w.state, w.reason, w.attempts, w.failures, v.worker,
    EXTRACT(EPOCH FROM w.run_at)::double precision AS run_at
FROM written w JOIN verdict v ON v.id = w.id
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A lapsed claim, and how long its job waits if it is to run again."""

    id: int
    token: UUID
    delay: float


async def reclaim(connection: Connection, verdicts: Sequence[Verdict], actor: str) -> list[Swept]:
    """End these claims as LOST, counted, unless they were renewed or concluded in between."""
    rows = [{"id": v.id, "token": str(v.token), "delay": v.delay} for v in verdicts]
    cursor = connection.cursor(row_factory=class_row(Swept))
    await cursor.execute(
        RECLAIM,
        {
            "input": json.dumps(rows),
            "ids": [v.id for v in verdicts],
            "tokens": [v.token for v in verdicts],
            "actor": actor,
        },
    )
    return await cursor.fetchall()
