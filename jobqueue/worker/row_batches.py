"""Batches of rows in one transaction; row by row if one of them fails it.

One bad row is set aside for a minute and named; the others go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import psycopg
from psycopg import AsyncConnection

from jobqueue.clock import loop_time
from jobqueue.logs import get_logger
from jobqueue.store import promotion
from jobqueue.store.error_classes import is_refused, is_transient

ASIDE_SECONDS = 60.0
log = get_logger()

type Call = Callable[..., Awaitable[Any]]
type Act[T, R] = Callable[[AsyncConnection[Any], Sequence[T]], Awaitable[list[R]]]
type Pick[T] = Callable[[AsyncConnection[Any]], Awaitable[list[T]]]


class HasId(Protocol):
    """A row to act on."""

    @property
    def id(self) -> int: ...


class RowsAside:
    """Jobs that one step could not change: left out for a minute, since a trigger or a lock that
    was in the way may be gone."""

    def __init__(self, step: str) -> None:
        self.step = step
        self._until: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def ids(self) -> list[int]:
        """Return the jobs to leave out now."""
        now = loop_time()
        self._until = {job: until for job, until in self._until.items() if until > now}
        return list(self._until)

    def add(self, job: int, error: BaseException) -> None:
        """Leave this job out for a while, and log it."""
        self._until[job] = loop_time() + ASIDE_SECONDS
        log.error("row_set_aside", step=self.step, job=job, error=repr(error))

    def forget(self) -> None:
        """Try all of them again: a new term begins."""
        self._until.clear()


async def pick_and_act[T: int | HasId, R](
    call: Call, aside: RowsAside, pick: Pick[T], act: Act[T, R]
) -> tuple[int, list[R]]:
    """Pick rows and act on them in one transaction; return how many were picked, and the act's
    answers. `call` runs a function of a connection in a transaction of its own."""
    picked: list[T] = []

    async def both(connection: AsyncConnection[Any]) -> list[R]:
        picked.extend(await pick(connection))
        return await act(connection, picked) if picked else []

    try:
        done: list[R] = await call(both)
    except Exception as error:
        if not picked or not concerns_row(error):
            raise
    else:
        return len(picked), done
    done = []
    for row in picked:
        try:
            done += await call(act, [row])
        except Exception as error:
            if not concerns_row(error):
                raise
            aside.add(row if isinstance(row, int) else row.id, error)
    return len(picked), done


async def promote(call: Call, aside: RowsAside, limit: int) -> list[str]:
    """Make due jobs READY and return the queue of each; one that the database refuses to change
    is left out."""
    try:
        queues: list[str] = await call(promotion.promote, limit, aside.ids())
    except psycopg.Error as error:
        if not concerns_row(error):
            raise
    else:
        return queues
    queues = []
    for job in await call(promotion.due, limit, aside.ids()):
        try:
            queues += await call(promotion.promote_one, job)
        except psycopg.Error as error:
            if not concerns_row(error):
                raise
            aside.add(job, error)
    return queues


def concerns_row(error: Exception) -> bool:
    """Whether one row may have caused the error: the database refuses it, or Python cannot handle
    its values. Transient errors and missing rights concern all rows."""
    if isinstance(error, psycopg.Error):
        return (error.sqlstate is not None or isinstance(error, psycopg.DataError)) and not (
            is_transient(error) or is_refused(error)
        )
    return not is_transient(error)
