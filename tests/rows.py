"""Rows written and read straight in SQL, as another process would leave them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

from psycopg import AsyncConnection, sql
from psycopg.rows import dict_row, scalar_row

Connection = AsyncConnection[Any]


class Sql(str):
    """An expression that the database evaluates, such as a moment relative to its own clock."""

    __slots__ = ()


def ago(seconds: float) -> Sql:
    return Sql(f"clock_timestamp() - {seconds} * interval '1 second'")


def ahead(seconds: float) -> Sql:
    return ago(-seconds)


async def insert(connection: Connection, table: str, key: str, columns: dict[str, Any]) -> Any:
    values = [
        sql.SQL(value) if isinstance(value, Sql) else sql.Literal(_stored(value))
        for value in columns.values()
    ]
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) RETURNING {}").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(values),
        sql.Identifier(key),
    )
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(statement)
    return await cursor.fetchone()


def _stored(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


async def add_job(connection: Connection, **columns: Any) -> int:
    return int(await insert(connection, "jobqueue_job", "id", {"task": "shop.receipt", **columns}))


async def add_running(
    connection: Connection, *, worker: UUID | None = None, lease: Sql | None = None, **columns: Any
) -> tuple[int, UUID]:
    """A RUNNING job; its lease has lapsed unless given. Returns id and token."""
    token = uuid4()
    job = await add_job(
        connection,
        state="RUNNING",
        worker=worker or uuid4(),
        lease_token=token,
        lease_expires_at=ago(0.001) if lease is None else lease,
        claimed_at=ago(60),
        started_at=ago(60),
        **columns,
    )
    return job, token


async def add_worker(connection: Connection, **columns: Any) -> UUID:
    given = {"id": uuid4(), "pid": 1, "phase": "RUNNING", **columns}
    return UUID(str(await insert(connection, "jobqueue_worker", "id", given)))


async def one(connection: Connection, statement: str, *values: Any) -> Any:
    """Return the only value of the only row; None where there is no row."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(statement, values)
    return await cursor.fetchone()


async def job_row(connection: Connection, job: int) -> dict[str, Any]:
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute("SELECT * FROM jobqueue_job WHERE id = %s", [job])
    row = await cursor.fetchone()
    assert row is not None
    return row


async def history(connection: Connection, job: int) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute("SELECT * FROM jobqueue_attempt WHERE job_id = %s ORDER BY number", [job])
    return await cursor.fetchall()
