"""Jobs that were parked because a worker did not know their task: back to READY where one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import scalar_row, tuple_row

from jobqueue.versions import PARKED

Connection = AsyncConnection[Any]

# From one task to the next along the index of the parked, whatever number there is of each.
TASKS = f"""
WITH RECURSIVE found(queue, task) AS (
    (SELECT queue, task FROM jobqueue_job WHERE {PARKED} ORDER BY queue, task LIMIT 1)
    UNION ALL
    SELECT n.queue, n.task FROM found f CROSS JOIN LATERAL (
        SELECT queue, task FROM jobqueue_job
        WHERE {PARKED} AND (queue, task) > (f.queue, f.task)
        ORDER BY queue, task LIMIT 1) n
)
SELECT queue, task FROM found LIMIT %(limit)s
"""


async def tasks(connection: Connection, limit: int) -> list[tuple[str, str]]:
    """Return the queues and tasks of parked jobs."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(TASKS, {"limit": limit})
    return await cursor.fetchall()


# `parked_at` stays: for an older worker, which may be quicker, the time goes on.
PROMOTE = f"""
WITH known AS MATERIALIZED (
    SELECT ARRAY(
        SELECT p.id
        FROM unnest(%(queues)s::text[], %(tasks)s::text[]) AS t(queue, task)
        CROSS JOIN LATERAL (
            SELECT id FROM jobqueue_job
            WHERE {PARKED} AND queue = t.queue AND task = t.task
            ORDER BY priority DESC, run_at, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) p
        LIMIT %(limit)s
    ) AS ids
)
UPDATE jobqueue_job SET state = 'READY', reason = ''
WHERE id = ANY((SELECT ids FROM known)::bigint[])
RETURNING queue
"""


async def promote(
    connection: Connection, known: Sequence[tuple[str, str]], limit: int
) -> list[str]:
    """Make parked jobs of these queues and tasks READY; return the queue of each."""
    cursor = connection.cursor(row_factory=scalar_row)
    queues, tasks = [queue for queue, _ in known], [task for _, task in known]
    await cursor.execute(PROMOTE, {"queues": queues, "tasks": tasks, "limit": limit})
    return await cursor.fetchall()
