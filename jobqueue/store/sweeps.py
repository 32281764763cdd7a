"""Waiting jobs that ran out of time, and final ones that ran out of their retention.

First the ids of a batch, then the act on them, both in one transaction. Rows that somebody else
holds locked are left for the next batch; `skip` names rows that the database refused to change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row, scalar_row

from jobqueue.store.batches import Swept
from jobqueue.versions import OURS

Connection = AsyncConnection[Any]

EXPIRABLE = f"""
WITH expired AS MATERIALIZED (
    SELECT id FROM jobqueue_job
    WHERE expires_at IS NOT NULL AND state IN ('SCHEDULED', 'READY', 'BLOCKED')
      AND expires_at <= now() AND {OURS} AND id <> ALL(%(skip)s::bigint[])
    ORDER BY expires_at LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
), parked AS MATERIALIZED (
    SELECT id FROM jobqueue_job
    WHERE parked_at IS NOT NULL AND state = 'SCHEDULED'
      AND parked_at <= now() - %(unknown)s * interval '1 second'
      AND {OURS} AND id <> ALL(%(skip)s::bigint[])
    ORDER BY parked_at LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM expired UNION SELECT id FROM parked
"""


async def expirable(
    connection: Connection, limit: int, unknown: float, skip: Collection[int] = ()
) -> list[int]:
    """Return waiting jobs past their deadline, and those parked for `unknown` seconds."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(EXPIRABLE, {"limit": limit, "unknown": unknown, "skip": list(skip)})
    return await cursor.fetchall()


EXPIRE = f"""
WITH locked AS MATERIALIZED (
    SELECT id, COALESCE(expires_at <= now(), false) AS expired
    FROM jobqueue_job
    WHERE id = ANY(%(ids)s::bigint[]) AND {OURS}
      AND (state IN ('SCHEDULED', 'READY', 'BLOCKED') AND expires_at <= now()
           OR state = 'SCHEDULED' AND parked_at <= now() - %(unknown)s * interval '1 second')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
), written AS (
    UPDATE jobqueue_job j SET
        state = 'DEAD',
        reason = CASE WHEN m.expired THEN 'expired' ELSE 'unknown task' END,
        hold_until = NULL,
        finished_at = clock_timestamp()
    FROM locked m
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = m.id
    RETURNING j.id, j.task, j.queue, j.state, j.reason, j.attempts, j.failures, j.run_at
), trail AS (
    INSERT INTO jobqueue_jobevent (job, at, kind, actor, note)
    SELECT id, clock_timestamp(), 'expire', %(actor)s, reason FROM written
)
SELECT id, task, queue, state, reason, attempts, failures, NULL::uuid AS worker,
    EXTRACT(EPOCH FROM run_at)::double precision AS run_at
FROM written
"""


async def expire(
    connection: Connection, ids: Sequence[int], unknown: float, actor: str
) -> list[Swept]:
    """End those that are still waiting past their time; no attempt and no failure is counted."""
    cursor = connection.cursor(row_factory=class_row(Swept))
    await cursor.execute(EXPIRE, {"ids": list(ids), "unknown": unknown, "actor": actor})
    return await cursor.fetchall()


# The list of final states is what lets a prepared plan use the partial index.
PRUNABLE = f"""
SELECT id FROM jobqueue_job
WHERE state IN ('CANCELLED', 'DEAD', 'SUCCEEDED') AND state = %(state)s
  AND finished_at <= now() - %(age)s * interval '1 second'
  AND {OURS} AND id <> ALL(%(skip)s::bigint[])
ORDER BY finished_at
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
"""


async def prunable(
    connection: Connection, state: str, age: float, limit: int, skip: Collection[int] = ()
) -> list[int]:
    """Return jobs that ended in this state at least `age` seconds ago, the oldest first."""
    cursor = connection.cursor(row_factory=scalar_row)
    parameters = {"state": state, "age": age, "limit": limit, "skip": list(skip)}
    await cursor.execute(PRUNABLE, parameters)
    return await cursor.fetchall()


PRUNE = f"""
WITH locked AS MATERIALIZED (
    SELECT ARRAY(
        SELECT id FROM jobqueue_job
        WHERE id = ANY(%(ids)s::bigint[]) AND state = %(state)s AND {OURS}
          AND finished_at <= now() - %(age)s * interval '1 second'
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    ) AS ids
), attempts AS (
    DELETE FROM jobqueue_attempt WHERE job_id = ANY((SELECT ids FROM locked)::bigint[])
), gone AS (
    DELETE FROM jobqueue_job WHERE id = ANY((SELECT ids FROM locked)::bigint[]) RETURNING id
)
SELECT count(*) FROM gone
"""


async def prune(connection: Connection, ids: Sequence[int], state: str, age: float) -> int:
    """Delete those that are still this old, with their attempts.

    Their events are left to `history_pruning.forget_events`, as by an operator's prune.
    """
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(PRUNE, {"ids": list(ids), "state": state, "age": age})
    count: int | None = await cursor.fetchone()
    return count or 0
