"""Connections that cannot hang: every call is bounded by dropping its socket."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate

import psycopg
from psycopg import AsyncConnection, errors

APPLICATION = "jobqueue"
# Notices a dead peer within 45 s where nothing else speaks on the connection.
KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
CLOSE_SECONDS = 1.0
UNWIND_SECONDS = 0.1


class CallTimeout(psycopg.OperationalError):
    """The database did not answer in time; the connection was dropped."""


def is_weather(error: BaseException) -> bool:
    """Whether trying again later can help: the network, a restart, a failover, a busy server."""
    if isinstance(error, errors.ConnectionException | CallTimeout | OSError | TimeoutError):
        return True
    if isinstance(error, psycopg.InterfaceError):
        return True  # the connection was closed under the call
    state = getattr(error, "sqlstate", None)
    if state is not None:
        # 08 connection, 40 deadlock and serialization, 53 resources, 55 lock, 57 intervention,
        # 58 system, 25006 read-only after a failover, 25P03 and 57P05 session timeouts
        return state[:2] in {"08", "40", "53", "57", "58"} or state in {"55P03", "25006", "25P03"}
    return isinstance(error, psycopg.OperationalError) and not is_refused(error)


def is_refused(error: BaseException) -> bool:
    """Whether the server refuses this user, password or database: no waiting helps."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return state[:2] in {"28", "3D", "42"}
    text = str(error)
    return any(
        sign in text for sign in ("password authentication failed", "no pg_hba.conf entry")
    ) or ("FATAL" in text and (" does not exist" in text or "permission denied" in text))


def drop(connection: AsyncConnection[Any]) -> None:
    """Cut the socket under whatever waits on it, without a word to the server."""
    with contextlib.suppress(OSError, psycopg.Error, ValueError):
        descriptor = socket.socket(fileno=socket.dup(connection.pgconn.socket))
        with descriptor, contextlib.suppress(OSError):
            descriptor.shutdown(socket.SHUT_RDWR)


async def bounded[T](
    connection: AsyncConnection[Any] | None, call: Coroutine[Any, Any, T], seconds: float
) -> T:
    """Await a database call for at most this long. Raises CallTimeout.

    A plain asyncio.timeout is no bound: cancelling psycopg on a connection that swallows packets
    waits for the server once more. The call lives in a task of its own; at the bound its socket is
    dropped first, then the task is cancelled and awaited.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=max(seconds, 0))
        if task.done():
            return task.result()
        await _give_up(connection, task)
    except asyncio.CancelledError:
        await _give_up(connection, task)
        raise
    raise CallTimeout(f"no answer from the database within {seconds:.3g} s")


async def _give_up(connection: AsyncConnection[Any] | None, task: asyncio.Future[Any]) -> None:
    cancelled = False
    if connection is not None:
        drop(connection)
        try:  # the call sees its socket end by itself; psycopg asks the server when cancelled
            await asyncio.wait({task}, timeout=UNWIND_SECONDS)
        except asyncio.CancelledError:
            cancelled = True
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if not task.cancelled():
        task.exception()  # seen, so that nobody reports it as never retrieved
    if cancelled:
        raise asyncio.CancelledError


class Session:
    """One connection of the worker, opened when it is needed and dropped when it fails.

    Used by one owner at a time. `born` counts the connections that were opened, so that an owner
    can tell that its session is a new one.
    """

    def __init__(
        self,
        parameters: dict[str, Any],
        purpose: str,
        *,
        prepare: Callable[[AsyncConnection[Any]], Awaitable[None]] | None = None,
    ) -> None:
        self.parameters = {**KEEPALIVES, **parameters}
        self.parameters["application_name"] = f"{APPLICATION} {purpose}"
        self.prepare = prepare
        self.connection: AsyncConnection[Any] | None = None
        self.born = 0
        self._stale = False

    async def open(self, seconds: float) -> AsyncConnection[Any]:
        """Return the connection, connecting first where there is none, within the bound."""
        if self.connection is not None and not self.connection.closed and not self._stale:
            return self.connection
        await self.close()
        self._stale = False
        try:
            connection = await bounded(None, self._connect(), seconds)
        except BaseException:
            await self.close()  # it may have come in the very moment of the bound
            raise
        self.born += 1
        return connection

    async def _connect(self) -> AsyncConnection[Any]:
        connection = await AsyncConnection.connect(autocommit=True, **self.parameters)
        self.connection = connection
        if self.prepare:
            try:
                await self.prepare(connection)
            except BaseException:
                drop(connection)
                raise
        return connection

    def renew(self) -> None:
        """Have the next call open a fresh connection."""
        self._stale = True

    async def call[**P, T](
        self,
        verb: Callable[Concatenate[AsyncConnection[Any], P], Coroutine[Any, Any, T]],
        seconds: float,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one verb of the store, connecting first if need be, all within the bound.

        After any error of the network the connection is gone; the next call opens another.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        connection = await self.open(seconds)
        try:
            return await bounded(connection, verb(connection, *args, **kwargs), end - loop.time())
        except BaseException:
            if connection.closed or connection.broken or _in_transit(connection):
                await self.close()
            raise

    async def close(self) -> None:
        """Close within a second, whatever the server does. Never raises but for a cancellation."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        with contextlib.suppress(psycopg.Error, OSError):
            if _in_transit(connection):
                drop(connection)
            await bounded(connection, connection.close(), CLOSE_SECONDS)


def _in_transit(connection: AsyncConnection[Any]) -> bool:
    """Whether a statement was sent whose answer was not read: the session is not usable."""
    idle = psycopg.pq.TransactionStatus.IDLE
    return not connection.closed and connection.info.transaction_status != idle


class Backoff:
    """Waits before the next try after weather: doubling, capped, jittered by a quarter."""

    def __init__(self, first: float = 0.1, most: float = 5.0) -> None:
        self.first, self.most, self.failures = first, most, 0

    def next_delay(self) -> float:
        """Return the seconds to wait now."""
        seconds = min(self.first * 2.0 ** min(self.failures, 30), self.most)
        self.failures += 1
        return seconds * random.uniform(0.75, 1.25)  # noqa: S311

    def reset(self) -> None:
        self.failures = 0
