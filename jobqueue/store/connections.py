"""Connections that cannot hang: every call is bounded by dropping its socket."""

from __future__ import annotations

import asyncio
import contextlib
import random
import select
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.pq import TransactionStatus
from psycopg.types.json import set_json_loads

from jobqueue.logs import get_logger
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.error_classes import USELESS_STATES, CallTimeout, ParametersUnavailable
from jobqueue.store.values import read_json

APPLICATION = "jobqueue"
log = get_logger()
IDLE = TransactionStatus.IDLE
# Notices a dead peer within 45 s on an otherwise silent connection.
KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
# A call whose socket was dropped ends by itself within a turn or two of the loop.
UNWIND_SECONDS = 1.0
# The statements' plans do not depend on their parameters; without this each call is planned again,
# which takes longer than running it. Not behind a pooler, whose sessions belong to others too: it
# greets with a process number of its own.
GENERIC_PLANS = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', false)
WHERE pg_backend_pid() = %(pid)s
"""


def drop(connection: AsyncConnection[Any]) -> None:
    """Cut the socket under whatever waits on it, without notifying the server."""
    with contextlib.suppress(OSError, psycopg.Error, ValueError):
        descriptor = socket.socket(fileno=socket.dup(connection.pgconn.socket))
        with descriptor, contextlib.suppress(OSError):
            descriptor.shutdown(socket.SHUT_RDWR)


async def bounded[T](
    connection: AsyncConnection[Any] | None, call: Coroutine[Any, Any, T], seconds: float
) -> T:
    """Await a database call for at most this long. Raises CallTimeout.

    A plain asyncio.timeout is no bound: a cancelled psycopg call sends the server a cancel
    request and waits for its answer, which never comes if packets vanish. The call lives in a task
    of its own; at the bound its socket is dropped first, then the task is awaited. An answer that
    came at that moment counts. If there is no time left, nothing is sent.
    """
    if seconds <= 0:
        call.close()
        raise CallTimeout("no time was left to ask the database")
    task = asyncio.ensure_future(call)
    in_time = True
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            in_time = False
            await _give_up(connection, task)
    except asyncio.CancelledError:
        await _give_up(connection, task)
        raise
    if in_time or not (task.cancelled() or task.exception()):
        return task.result()
    raise CallTimeout(f"no answer from the database within {seconds:.3g} s")


async def _give_up(connection: AsyncConnection[Any] | None, task: asyncio.Future[Any]) -> None:
    """End a call, through any number of cancellations."""
    loop = asyncio.get_running_loop()
    patience, cancelled = 0.0, False
    if connection is not None:
        drop(connection)
        # Cancelled before it has seen the end of its socket, psycopg asks the server once more.
        patience = UNWIND_SECONDS
    end: float | None = loop.time() + patience
    while not task.done():
        if end is not None and loop.time() >= end:
            task.cancel()
            end = None
        try:
            await asyncio.wait({task}, timeout=None if end is None else end - loop.time())
        except asyncio.CancelledError:
            cancelled = True
    if not task.cancelled():
        task.exception()  # retrieved, so that it is not reported as never retrieved
    if cancelled:
        raise asyncio.CancelledError


class Session:
    """One connection of the worker, opened when it is needed and dropped when it fails.

    Used by one owner at a time. `prepare` is run on each fresh connection before anything else.
    """

    def __init__(
        self,
        parameters: ConnectionParameters,
        purpose: str,
        *,
        prepare: Callable[[AsyncConnection[Any]], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.parameters, self.purpose = parameters, purpose
        self.prepare = prepare
        self.connection: AsyncConnection[Any] | None = None
        self.born = 0  # how many were opened
        self._stale = self._used_known = False

    async def open(self, seconds: float) -> AsyncConnection[Any]:
        """Return the connection, connecting first where there is none, within the bound."""
        if self.connection is not None and not _is_over(self.connection):
            if self._stale:
                await self._replace(self.connection, seconds / 2)
            return self.connection
        await self.close()
        self._stale = False
        return await self._open(seconds)

    async def _open(self, seconds: float) -> AsyncConnection[Any]:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            connection = await bounded(None, self._connect(seconds), seconds)
            await bounded(connection, self._begin(connection), end - loop.time())
        except BaseException:
            await self.close()
            raise
        return connection

    async def _replace(self, old: AsyncConnection[Any], seconds: float) -> None:
        """Open a fresh connection, then close the old one: if the new one fails, the old one stays
        in use."""
        self._stale, self.connection = False, None
        try:
            await self._open(seconds)
        except BaseException as error:
            self.connection = old
            if not isinstance(error, Exception):
                raise
            log.warning("reconnect_failed", error=str(error).strip())
        else:
            await _farewell(old)

    async def _connect(self, seconds: float) -> AsyncConnection[Any]:
        parameters = await self._ask(seconds / 2)
        # Kept at once: a cancellation at this moment must not lose an open connection.
        self.connection = await AsyncConnection.connect(
            autocommit=True,
            **{
                **KEEPALIVES,
                **parameters,
                "application_name": f"{APPLICATION} {self.purpose}",
            },
        )
        self.born += 1
        return self.connection

    async def _ask(self, seconds: float) -> dict[str, Any]:
        """Return what to connect with. While that cannot be found the last known is tried once."""
        try:
            found = await self.parameters.ask(seconds)
        except ParametersUnavailable as error:
            if self.parameters.known is None or self._used_known:
                raise
            log.warning("connection_parameters_failed", purpose=self.purpose, error=str(error))
            self._used_known = True
            return self.parameters.known
        self._used_known = False
        return found

    async def _begin(self, connection: AsyncConnection[Any]) -> None:
        set_json_loads(read_json, connection)
        await connection.execute(GENERIC_PLANS, {"pid": connection.info.backend_pid})
        if self.prepare is not None:
            await self.prepare(connection)

    def renew(self) -> None:
        """Open a fresh connection at the next call."""
        self._stale = True

    async def call[**P, T](
        self,
        verb: Callable[Concatenate[AsyncConnection[Any], P], Coroutine[Any, Any, T]],
        seconds: float,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one verb of the store, connecting first if need be, all within the bound.

        After an error the connection is kept only if it is certainly usable. If it is gone,
        `connection` is None, and nobody knows whether the statement was executed.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            return await self._call(end, verb, *args, **kwargs)
        except errors.FeatureNotSupported:
            # A migration has changed what a prepared statement returns. It was refused before it
            # ran, and would be so in this session for ever.
            await self.close()
            return await self._call(end, verb, *args, **kwargs)

    async def _call[**P, T](
        self,
        end: float,
        verb: Callable[Concatenate[AsyncConnection[Any], P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        loop = asyncio.get_running_loop()
        connection = await self.open(end - loop.time())
        try:
            return await bounded(connection, verb(connection, *args, **kwargs), end - loop.time())
        except BaseException as error:
            # A session that began on a read-only server may stay so when another server is the
            # primary, or when this one is writable again; and what has been prepared in it can be
            # gone (a pooler's reset).
            if _is_over(connection) or getattr(error, "sqlstate", None) in USELESS_STATES:
                await self.close()
            raise

    async def close(self) -> None:
        """Close without waiting for the server. Never raises."""
        connection, self.connection = self.connection, None
        if connection is not None:
            await _farewell(connection)


async def _farewell(connection: AsyncConnection[Any]) -> None:
    if _is_over(connection):
        drop(connection)
    with contextlib.suppress(psycopg.Error, OSError):
        await connection.close()  # needs no answer


def _is_over(connection: AsyncConnection[Any]) -> bool:
    """Whether this session is unusable: closed, in the middle of something, or ended by the server
    while idle (timeout, restart). An idle session has nothing to read: anything there is the
    server's last message."""
    if connection.closed or connection.info.transaction_status != IDLE:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


class ExponentialBackoff:
    """Waits after transient errors: doubling, capped, jittered by a quarter."""

    def __init__(self, first: float = 0.1, most: float = 5.0) -> None:
        self.first, self.most, self.failures = first, most, 0

    def next_delay(self) -> float:
        """Return the seconds to wait now."""
        seconds = min(self.first * 2.0 ** min(self.failures, 30), self.most)
        self.failures += 1
        return seconds * random.uniform(0.75, 1.25)  # noqa: S311

    def reset(self) -> None:
        self.failures = 0
