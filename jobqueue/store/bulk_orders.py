"""Whether operators' bulk orders wait; they are worked through on the web side's own way."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

OPEN = "SELECT EXISTS (SELECT FROM jobqueue_bulkorder WHERE state = 'RUNNING')"


async def are_open(connection: AsyncConnection[Any]) -> bool:
    """Whether any order runs."""
    cursor = await connection.cursor(row_factory=tuple_row).execute(OPEN)
    row = await cursor.fetchone()
    return row is not None and bool(row[0])
