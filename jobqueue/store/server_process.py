"""The server process behind a connection: to end it when a lost answer must be final."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

Connection = AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """The server process behind a connection, so that it can be found when that is cut."""

    pid: int
    started: Any
    name: str  # of the session that it served: a pooler may give it to another client
    direct: bool  # False behind a pooler: another process may run what is sent next


BACKEND = """
SELECT pid, backend_start, application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()
"""


async def of_connection(connection: Connection) -> ServerProcess | None:
    """Return the server process behind this connection."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(BACKEND)
    row = await cursor.fetchone()
    if row is None:
        return None
    pid, started, name = row
    # Most poolers report a made-up process id at login.
    return ServerProcess(pid, started, name, direct=pid == connection.info.backend_pid)


# Ends a server process, so that its last statement was executed or never will be. Its role is the
# same, so no special right is needed. One that now serves a session of another name is left alone:
# there is a pooler that reports real process ids.
END_BACKEND = """
SELECT CASE WHEN application_name = %(name)s THEN pg_terminate_backend(pid, %(wait)s) END
FROM pg_stat_activity
WHERE pid = %(pid)s AND backend_start = %(started)s AND pid <> pg_backend_pid()
"""


async def end(connection: Connection, process: ServerProcess, seconds: float = 2.0) -> bool:
    """End this server process, waiting this long; return whether it is certainly gone."""
    cursor = connection.cursor(row_factory=tuple_row)
    known = {"pid": process.pid, "started": process.started, "name": process.name}
    await cursor.execute(END_BACKEND, {**known, "wait": int(seconds * 1000)})
    row = await cursor.fetchone()
    return row is None or bool(row[0])
