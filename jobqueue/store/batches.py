"""One small transaction a batch, under a timeout that the server keeps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate
from uuid import UUID

from psycopg import AsyncConnection

Connection = AsyncConnection[Any]

TIMEOUT = """
SELECT set_config('statement_timeout', %(milliseconds)s, true)
"""


async def in_batch[**P, T](
    connection: Connection,
    seconds: float,
    verb: Callable[Concatenate[Connection, P], Coroutine[Any, Any, T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run one verb in a transaction of its own, under a timeout that the server keeps.

    Local to the transaction, so that behind a pooler no other session inherits it.
    """
    async with connection.transaction():
        await connection.execute(TIMEOUT, {"milliseconds": str(int(seconds * 1000))})
        return await verb(connection, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Swept:
    """What the leader did to one job. `run_at` as seconds since the epoch."""

    id: int
    task: str
    queue: str
    state: str
    reason: str
    attempts: int
    failures: int
    worker: UUID | None
    run_at: float
