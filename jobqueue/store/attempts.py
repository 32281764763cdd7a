"""A job's earlier attempts, as they are shown."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

PAST = """
SELECT worker::text, error_class, traceback FROM jobqueue_attempt
WHERE job_id = %(job)s AND number <= %(attempts)s
ORDER BY number
"""


async def past(
    connection: AsyncConnection[Any], job: int, attempts: int
) -> list[tuple[str, str, str]]:
    """Return worker, error's class and traceback of each of a job's ended attempts."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(PAST, {"job": job, "attempts": attempts})
    return await cursor.fetchall()
