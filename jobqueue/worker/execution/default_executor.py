"""The loop's default executor: `asyncio.to_thread`, `run_in_executor(None, …)`, host name look-ups.

The calls of a handler are a part of it: they run on healthy connections that nobody else uses
meanwhile, and the handler has not ended before they have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from jobqueue.worker.execution.containment import current_inflight, forks, leave_if_forked
from jobqueue.worker.execution.invocation import (
    ENDED,
    INTERRUPT,
    INTERRUPT_AGAIN_SECONDS,
    QUERY_SECONDS,
)
from jobqueue.worker.inflight import InFlight, Stop
from jobqueue.worker.threads.call_pool import CallPool
from jobqueue.worker.threads.handler_thread import HandlerThread, HandlerThreads

# For name look-ups: handlers must not keep a service from reconnecting.
SERVICE_THREADS = 4


class DefaultExecutor(ThreadPoolExecutor):
    """asyncio takes nothing but a ThreadPoolExecutor; the threads are our own."""

    def __init__(self, handler_threads: HandlerThreads, concurrency: int) -> None:
        super().__init__(max_workers=1)  # never used
        self.handler_threads = handler_threads
        self.handlers = CallPool("handler-call", concurrency)
        self.services = CallPool("service-call", SERVICE_THREADS)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Called on the loop, in the context of whoever makes the call."""
        inflight = current_inflight.get()
        if inflight is None:
            future: Future[Any] = Future()
            self.services.submit(lambda thread: _complete(future, partial(fn, *args, **kwargs)))
            return future
        if inflight.on_late_child is not None:
            raise RuntimeError(ENDED)
        calls = inflight.calls
        if calls is None:
            calls = HandlerCalls(inflight, self.handlers, self.handler_threads)
            inflight.attach_calls(calls)
        return calls.submit(partial(fn, *args, **kwargs))

    def renew(self) -> None:
        """Use fresh connections."""
        self.handlers.renew()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The threads are daemons: nobody waits for them."""
        self.handlers.close()
        self.services.close()


class CallFuture(Future[Any]):
    """Knows whether the handler gave up waiting for it while it ran."""

    is_abandoned = False

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        self.is_abandoned = not is_cancelled
        return is_cancelled


class PendingCall:
    """One call of a handler, from its submission to its end."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.future = function, CallFuture()
        self.thread: HandlerThread | None = None
        self.number = 0  # of the thread's calls


class HandlerCalls:
    """The calls that one handler has given to the default executor."""

    def __init__(self, inflight: InFlight, pool: CallPool, handler_threads: HandlerThreads) -> None:
        self.inflight, self.pool, self.handler_threads = inflight, pool, handler_threads
        self.loop = asyncio.get_running_loop()
        self._calls: set[PendingCall] = set()
        self._used: set[HandlerThread] = set()
        self._awaited = False
        self._ended = asyncio.Event()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        call = PendingCall(function)
        self._calls.add(call)
        call.future.add_done_callback(lambda future: self._over(call))
        self.pool.submit(partial(self._make, call))
        return call.future

    def _over(self, call: PendingCall) -> None:
        """In any thread: it has ended, or was cancelled before it began."""
        self._calls.discard(call)
        if self._awaited:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._ended.set)

    def _make(self, call: PendingCall, thread: HandlerThread) -> None:
        """In the thread: on healthy connections, and with nothing left behind."""
        if not call.future.set_running_or_notify_cancel():
            return
        self._used.add(thread)
        call.number, call.thread = thread.call_number, thread
        before = forks()
        value, error = None, None
        try:
            thread.prepare()
            thread.bridge(self.loop)
            value, error = thread.run_user_code(call.function)
        except BaseException as broken:
            error = broken
        leave_if_forked(before, error)
        thread.tidy()
        call.thread = None
        _settle(call.future, value, error)
        del value, error

    def threads(self) -> list[HandlerThread]:
        """Those in which a call runs now."""
        return [call.thread for call in list(self._calls) if call.thread is not None]

    def stop(self, why: Stop) -> None:
        """On the loop: the handler is asked to stop, and so are its calls. What has not begun never
        will."""
        for call in list(self._calls):
            call.future.cancel()
            if self.inflight.interruptible:
                self._interrupt(call, why)
        self._cancel_queries()

    def _interrupt(self, call: PendingCall, why: Stop) -> None:
        thread = call.thread
        if thread is None or call.future.done():
            return
        if not thread.interrupt(INTERRUPT[why], call.number):
            self.loop.call_later(INTERRUPT_AGAIN_SECONDS, self._interrupt, call, why)

    def _cancel_queries(self) -> None:
        """Of the calls that nobody awaits any more."""
        if not self.inflight.interruptible:
            return
        for call in list(self._calls):
            thread = call.thread if call.future.is_abandoned else None
            if thread is not None and (cancel := thread.queries(call.number)):
                self.handler_threads.apart(cancel)

    async def outlast(self) -> None:
        """The handler has returned: wait for its calls, through any number of cancels. Then its
        connections are closed."""
        self._awaited = True
        while self._calls:
            self._cancel_queries()
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(QUERY_SECONDS):
                    await self._ended.wait()
            self._ended.clear()
        for thread in self._used:
            thread.discard()


def _complete(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    value, error = None, None
    try:
        value = function()
    except BaseException as raised:
        error = raised
    _settle(future, value, error)


def _settle(future: Future[Any], value: Any, error: BaseException | None) -> None:
    if isinstance(error, StopIteration):  # a future refuses it
        error = RuntimeError("the call raised StopIteration")
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
