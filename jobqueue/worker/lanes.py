"""Lanes: each running handler has an ORM thread and Django connections of its own."""

from __future__ import annotations

import contextlib
import ctypes
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

import structlog
from django.db import connections
from psycopg.pq import TransactionStatus

IDLE_SECONDS = 30.0
QUERY_CANCEL_SECONDS = 2.0
log = structlog.get_logger("jobqueue")


class Lane(Executor):
    """One thread that runs one call at a time, and the connections that Django opens in it.

    A daemon thread: the interpreter's exit does not wait for a handler that never returns.
    """

    def __init__(self, name: str) -> None:
        self.pending = 0  # calls submitted and not yet ended
        self.idle_since = time.monotonic()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()  # around "user code runs here"
        self._gate = threading.Lock()  # held while the running query is being cancelled
        self._user_code = False
        self._wrappers: list[Any] = []
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call in this lane's thread, after those already submitted."""
        future: Future[Any] = Future()
        with self._lock:
            self.pending += 1

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    value = fn(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(_carried(error))
                else:
                    future.set_result(value)

        self._calls.put(call)
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._gate:
                pass  # a query cancel on its way would otherwise hit this call
            call()
            with self._lock:
                self.pending -= 1
                self.idle_since = time.monotonic()

    def prepare(self) -> None:
        """In the lane's thread, before a handler: healthy connections, known to cancel_query."""
        refresh_connections()
        self._wrappers = list(connections.all())

    def run_user_code(self, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """In the lane's thread: call the handler, open to `interrupt`. Returns (value, error)."""
        value, error = None, None
        try:
            try:
                with self._lock:
                    self._user_code = True
                value = function()
            except BaseException as raised:
                error = raised
            self.shut_interrupts()
        except BaseException as raised:
            # An interrupt that landed after the handler's last line, before the shutting.
            error = error or raised
            self.shut_interrupts()
        return value, error

    def shut_interrupts(self) -> None:
        """In the lane's thread: no interrupt can arrive any more; a pending one is dropped."""
        with self._lock:
            self._user_code = False
            _set_async_exception(self.thread.ident, None)

    def interrupt(self, kind: type[BaseException]) -> bool:
        """Raise this in the thread at its next line of user code; whether user code runs."""
        with self._lock:
            if not self._user_code:
                return False
            _set_async_exception(self.thread.ident, kind)
            return True

    def cancel_query(self) -> None:
        """Cancel what this lane's connections are running at the server. Blocks up to 2 s."""
        with self._gate:
            for wrapper in self._wrappers:
                raw = wrapper.connection
                if raw is None or getattr(raw, "closed", True) or wrapper.vendor != "postgresql":
                    continue
                if raw.info.transaction_status == TransactionStatus.ACTIVE:
                    with contextlib.suppress(Exception):
                        raw.cancel_safe(timeout=QUERY_CANCEL_SECONDS)

    def has_connection(self) -> bool:
        return any(wrapper.connection is not None for wrapper in self._wrappers)

    def close(self) -> None:
        """Let the thread end after its last call."""
        self.submit(discard_connections)
        self._calls.put(None)


def _carried(error: BaseException) -> BaseException:
    # A future refuses StopIteration; asgiref's callers expect anything else as it is.
    return (
        RuntimeError("the call raised StopIteration") if isinstance(error, StopIteration) else error
    )


def _set_async_exception(thread: int | None, kind: type[BaseException] | None) -> None:
    target = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), target)


def refresh_connections() -> None:
    """In a lane: close connections that the server has ended meanwhile; costs no round trip."""
    for wrapper in connections.all(initialized_only=True):
        raw = wrapper.connection
        if raw is None:
            continue
        if wrapper.settings_dict.get("CONN_HEALTH_CHECKS"):
            wrapper.close_if_unusable_or_obsolete()
        elif _ended_by_server(raw):
            wrapper.close()


def _ended_by_server(raw: Any) -> bool:
    if getattr(raw, "closed", False):
        return True
    try:
        descriptor = raw.fileno()
    except Exception:
        return True
    poll = select.poll()  # select.select ends at descriptor 1023
    poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))  # an idle session has nothing to say but that it ends


def tidy_connections() -> None:
    """In a lane: nothing of one handler's transactions may reach the next one."""
    for wrapper in connections.all(initialized_only=True):
        raw = wrapper.connection
        if raw is not None and _is_clean(wrapper, raw):
            wrapper.queries_log.clear()
            continue
        _discard(wrapper)


def _is_clean(wrapper: Any, raw: Any) -> bool:
    if wrapper.in_atomic_block or wrapper.needs_rollback or not wrapper.autocommit:
        return False
    if getattr(raw, "closed", False) or wrapper.vendor != "postgresql":
        return False
    return bool(raw.info.transaction_status == TransactionStatus.IDLE)


def discard_connections() -> None:
    """In a lane: close every connection."""
    for wrapper in connections.all(initialized_only=True):
        _discard(wrapper)


def _discard(wrapper: Any) -> None:
    # Closing inside an atomic block leaves the wrapper in it: out of it first, and a new wrapper
    # for the next use.
    wrapper.in_atomic_block, wrapper.savepoint_ids, wrapper.run_on_commit = False, [], []
    with contextlib.suppress(Exception):
        wrapper.close()
    with contextlib.suppress(AttributeError):
        del connections[wrapper.alias]


class Lanes:
    """The lanes of this worker: taken by a handler, given back when nothing of it runs there."""

    def __init__(self) -> None:
        self._free: list[Lane] = []
        self._made = 0
        self._canceller: Lane | None = None

    def take(self) -> Lane:
        """Return an idle lane; a new one when all are in use."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return Lane(f"lane-{self._made}")

    def give_back(self, lane: Lane) -> None:
        """The lane's last call has ended and its connections are tidy."""
        self._free.append(lane)

    def cancel_query(self, lane: Lane) -> None:
        """Cancel a lane's running query from a thread that may wait for the network."""
        if self._canceller is None:
            self._canceller = Lane("lane-canceller")
        self._canceller.submit(lane.cancel_query)

    def close_idle(self) -> None:
        """Close the connections of lanes that nobody has used for half a minute."""
        now = time.monotonic()
        for lane in self._free:
            if now - lane.idle_since > IDLE_SECONDS and lane.has_connection():
                lane.submit(discard_connections)

    def renew(self) -> None:
        """Have fresh connections: the idle lanes' at once, the others' when their handler ends."""
        for lane in self._free:
            lane.submit(discard_connections)

    def close(self) -> None:
        """Let every idle thread end."""
        for lane in [*self._free, *filter(None, [self._canceller])]:
            lane.close()
        self._free.clear()
