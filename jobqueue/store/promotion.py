"""Due SCHEDULED jobs become READY: by the leader on time, by the worker that postponed them
(within five seconds), by any worker's poll if they are overdue."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import scalar_row, tuple_row

from jobqueue.versions import TIMED

Connection = AsyncConnection[Any]

# Time alone brings back none that is parked, or that this code does not understand.
_DUE = f"{TIMED} AND run_at <= now() AND (hold_until IS NULL OR hold_until <= now())"

# Rows being promoted or cancelled by others are skipped, never waited for.
PROMOTE = f"""
WITH due AS MATERIALIZED (
    SELECT ARRAY(
        SELECT id FROM jobqueue_job
        WHERE {_DUE} AND id <> ALL(%(skip)s::bigint[])
        ORDER BY run_at
        LIMIT %(limit)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS ids
)
UPDATE jobqueue_job SET state = 'READY', hold_until = NULL
WHERE id = ANY((SELECT ids FROM due)::bigint[])
RETURNING queue
"""


async def promote(connection: Connection, limit: int, skip: Collection[int] = ()) -> list[str]:
    """Make due jobs READY, the earliest first, and return the queue of each. `skip` names rows
    that the database refused to change."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(PROMOTE, {"limit": limit, "skip": list(skip)})
    return await cursor.fetchall()


DUE = f"""
SELECT id FROM jobqueue_job
WHERE {_DUE} AND id <> ALL(%(skip)s::bigint[])
ORDER BY run_at
LIMIT %(limit)s
"""


async def due(connection: Connection, limit: int, skip: Collection[int] = ()) -> list[int]:
    """Return the due jobs, the earliest first, to try each by itself if one is refused."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(DUE, {"limit": limit, "skip": list(skip)})
    return await cursor.fetchall()


PROMOTE_ONE = f"""
WITH due AS MATERIALIZED (
    SELECT id FROM jobqueue_job
    WHERE id = %(id)s AND {_DUE}
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE jobqueue_job SET state = 'READY', hold_until = NULL
WHERE id = (SELECT id FROM due)
RETURNING queue
"""


async def promote_one(connection: Connection, job: int) -> list[str]:
    """Make one due job READY and return its queue; nothing if it is no longer due."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(PROMOTE_ONE, {"id": job})
    return await cursor.fetchall()


# A held row's moment is the end of its hold; there are few of them, right at the index's start.
NEXT_DUE = f"""
SELECT EXTRACT(EPOCH FROM min(GREATEST(run_at, hold_until)) - clock_timestamp())::double precision
FROM (
    SELECT run_at, hold_until FROM jobqueue_job WHERE {TIMED} ORDER BY run_at LIMIT 100
) AS earliest
"""


async def next_due(connection: Connection) -> float | None:
    """Return the seconds until the next scheduled job falls due (zero or less: now), or None."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(NEXT_DUE)
    row = await cursor.fetchone()
    return None if row is None else row[0]
