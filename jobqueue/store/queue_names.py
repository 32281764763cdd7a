"""The names of queues, for a worker that serves every one."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from jobqueue.versions import CLAIMABLE

# From one name to the next by the claim's index: a probe a queue, whatever the queues hold.
READY_QUEUES = f"""
WITH RECURSIVE ready(name) AS (
    (SELECT queue FROM jobqueue_job WHERE {CLAIMABLE} ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM jobqueue_job WHERE {CLAIMABLE} AND queue > r.name
            ORDER BY queue LIMIT 1)
    FROM ready r WHERE r.name IS NOT NULL
)
SELECT name FROM ready WHERE name IS NOT NULL
"""


async def ready_queues(connection: AsyncConnection[Any]) -> list[str]:
    """Return the queues that have ready jobs."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(READY_QUEUES)
    return [name for (name,) in await cursor.fetchall()]
