"""Whether operators' bulk orders are open; the web side's code works through them."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

OPEN = "SELECT EXISTS (SELECT FROM jobqueue_bulkorder WHERE state = 'RUNNING')"


async def are_open(connection: AsyncConnection[Any]) -> bool:
    """Whether any order is open."""
    cursor = await connection.cursor(row_factory=tuple_row).execute(OPEN)
    row = await cursor.fetchone()
    return row is not None and bool(row[0])
