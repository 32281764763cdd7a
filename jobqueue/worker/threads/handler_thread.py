"""Each running handler has a thread for the ORM and Django connections of its own."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

import asgiref.local
from asgiref.sync import SyncToAsync

from jobqueue.logs import get_logger
from jobqueue.worker.threads import orm_connections

IDLE_SECONDS = 30.0
QUERY_CANCEL_SECONDS = 2.0
# A second interrupt this soon after the first could land outside the handler's code.
INTERRUPT_APART_SECONDS = 0.05
# Modules that take a process-wide lock by acquire() and then try: an interrupt in between would
# leave it taken, and the loop waiting for it.
FRAGILE = frozenset(
    {asgiref.local.__file__, logging.__file__, weakref.__file__, "<frozen importlib._bootstrap>"}
)
log = get_logger()


class HandlerThread(Executor):
    """One thread that runs one call at a time, and the connections that Django opens in it.

    A daemon thread: the interpreter's exit does not wait for a handler that never returns.
    """

    def __init__(self, name: str) -> None:
        self.pending = 0  # calls submitted and not yet ended
        self.call_number = 0  # of the current or last call
        self.used_at: float | None = None  # None: no connection is open
        self.stale = False  # its connections must not be used for another handler
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()  # around "user code runs here"
        self._gate = threading.Lock()  # held while the running query is being cancelled
        self._user_code = False
        self._interrupted_at = 0.0
        self._wrappers: list[Any] = []
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call in this thread, after those already submitted."""
        future: Future[Any] = Future()
        with self._lock:
            self.pending += 1
        self.used_at = time.monotonic()
        self._calls.put(lambda: _complete(future, fn, args, kwargs))
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._gate:  # or a query cancel on its way would hit this call
                self.call_number += 1
            try:
                call()
            except BaseException:
                log.critical("thread_call_failed", thread=self.thread.name, exc_info=True)
            del call  # or a handler's arguments and result would be kept until the next one
            with self._lock:
                self.pending -= 1

    def prepare(self) -> None:
        """Called in the thread before a handler: set up healthy connections for `queries`."""
        self._wrappers = orm_connections.refresh_connections()

    def tidy(self) -> None:
        """Called in the thread after a handler: leave nothing of it."""
        try:
            orm_connections.close_dropped(self._wrappers)
            if self.stale:
                # An interrupt may have landed while a driver's lock was held.
                self.stale = False
                orm_connections.discard_connections()
            else:
                orm_connections.tidy_connections()
        except Exception:
            log.exception("thread_cleanup_failed", thread=self.thread.name)
            self.stale = True

    def bridge(self, loop: Any) -> None:
        """Called in the thread: make `async_to_sync` in a plain handler use this loop, whatever ran
        in this thread before, so that what it awaits can be cancelled."""
        local = SyncToAsync.threadlocal
        local.main_event_loop, local.main_event_loop_pid = loop, os.getpid()
        local.task_context = None

    def run_user_code(self, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Called in the thread: call the handler, open to `interrupt`. Returns (value, error)."""
        value, error, returned = None, None, False
        try:
            try:
                self._user_code = True
                value = function()
                returned = True
            except BaseException as raised:
                error = raised
            self.shut_interrupts()
        except BaseException as late:
            # One interrupt, but no more, can land after the handler's last line.
            self.shut_interrupts()
            if not returned:
                error = error or late
        return value, error

    @property
    def is_open(self) -> bool:
        """Whether user code is running that may be interrupted."""
        return self._user_code

    def shut_interrupts(self) -> None:
        """Called in the thread: from now on no interrupt can arrive; a pending one is dropped."""
        self._user_code = False
        with self._lock:
            self._user_code = False
            _set_async_exception(self.thread.ident, None)

    def interrupt(self, kind: type[BaseException], number: int | None = None) -> bool:
        """Raise this in the thread at its next line; return whether it will be. It will not if no
        user code is running, soon after another one, or where it would do harm at this moment.
        `number`: only in this call."""
        with self._lock:
            now = time.monotonic()
            if number is not None and number != self.call_number:
                return False
            if not self._user_code or now - self._interrupted_at < INTERRUPT_APART_SECONDS:
                return False
            frame = sys._current_frames().get(self.thread.ident or 0)
            if frame is None or frame.f_code.co_filename in FRAGILE:
                return False
            self._interrupted_at, self.stale = now, True
            _set_async_exception(self.thread.ident, kind)
            return True

    def queries(self, number: int | None = None) -> Callable[[], None] | None:
        """Called from any thread: return a function that cancels the queries running on this
        thread's connections, or None. It blocks for up to 2 s, and never hits a later call (than
        the one of this number)."""
        number = self.call_number if number is None else number
        running = orm_connections.running_queries(self._wrappers)
        if not running:
            return None

        def cancel() -> None:
            with self._gate:
                for raw in running:
                    if self.call_number == number and not raw.closed:
                        with contextlib.suppress(Exception):
                            raw.cancel_safe(timeout=QUERY_CANCEL_SECONDS)

        return cancel

    def discard(self) -> None:
        """Close the connections after the calls already submitted."""
        self.submit(orm_connections.discard_connections)
        self.used_at = None

    def close(self) -> None:
        """End the thread after its last call."""
        self.discard()
        self._calls.put(None)


def _complete(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = fn(*args, **kwargs)
    except StopIteration:  # a future refuses it
        future.set_exception(RuntimeError("the call raised StopIteration"))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)
    finally:
        del future, fn, args, kwargs  # an error holds this frame, and must not hold itself


def _set_async_exception(thread: int | None, kind: type[BaseException] | None) -> None:
    target = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), target)


class HandlerThreads:
    """The handler threads: borrowed, and returned when nothing of a handler runs there."""

    def __init__(self) -> None:
        self._free: list[HandlerThread] = []
        self._taken: set[HandlerThread] = set()
        self._made = 0
        self._canceller: HandlerThread | None = None

    def borrow(self) -> HandlerThread:
        """Return an idle thread; a new one when all are in use."""
        if self._free:
            handler_thread = self._free.pop()
        else:
            self._made += 1
            handler_thread = HandlerThread(f"handler-{self._made}")
        self._taken.add(handler_thread)
        return handler_thread

    def give_back(self, handler_thread: HandlerThread) -> None:
        """The thread's last call has ended and its connections are tidy."""
        self._taken.discard(handler_thread)
        self._free.append(handler_thread)

    def apart(self, call: Callable[[], None]) -> None:
        """Make a call that may wait for the network, such as a query cancel."""
        if self._canceller is None:
            self._canceller = HandlerThread("handler-canceller")
        self._canceller.submit(call)

    def close_idle(self) -> None:
        """Close the connections of threads that nobody has used for half a minute."""
        now = time.monotonic()
        for handler_thread in self._free:
            if handler_thread.used_at is not None and now - handler_thread.used_at > IDLE_SECONDS:
                handler_thread.discard()

    def renew(self) -> None:
        """Replace the connections: in idle threads at once, in others when their handler ends."""
        for handler_thread in self._taken:
            handler_thread.stale = True
        for handler_thread in self._free:
            handler_thread.discard()

    def close(self) -> None:
        """End every idle thread."""
        for handler_thread in [*self._free, *filter(None, [self._canceller])]:
            handler_thread.close()
        self._free.clear()
