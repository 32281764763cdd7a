"""One small transaction per batch, under timeouts enforced by the server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate
from uuid import UUID

from psycopg import AsyncConnection

Connection = AsyncConnection[Any]

# Also between the statements: a leader that is frozen or cut off in the middle of a batch must not
# keep its rows, a schedule's among them, from its successor.
TIMEOUTS = """
SELECT set_config('statement_timeout', %(milliseconds)s, true),
    set_config('idle_in_transaction_session_timeout', %(milliseconds)s, true)
"""


async def in_batch[**P, T](
    connection: Connection,
    seconds: float,
    verb: Callable[Concatenate[Connection, P], Coroutine[Any, Any, T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run one verb in a transaction of its own; no statement, and no pause between two, may take
    longer than `seconds`.

    Local to the transaction, so that behind a pooler no other session inherits it.
    """
    async with connection.transaction():
        await connection.execute(TIMEOUTS, {"milliseconds": str(int(seconds * 1000))})
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
