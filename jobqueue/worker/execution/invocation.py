"""How one handler runs: a coroutine on the loop, or a function in a thread of its own.

Either way it ends as a value or an error; no exception reaches the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from typing import Any

from asgiref.sync import ThreadSensitiveContext

from jobqueue.exceptions import JobCancelled, JobInterrupted, JobTimeout
from jobqueue.worker.execution.containment import (
    ForkGuard,
    LeftoverTasks,
    current_inflight,
    forks,
    leave_if_forked,
)
from jobqueue.worker.inflight import InFlight, Stop
from jobqueue.worker.outcomes.attempt_options import Ended
from jobqueue.worker.threads.handler_thread import HandlerThread, HandlerThreads

INTERRUPT: dict[Stop, type[BaseException]] = {
    Stop.CANCEL: JobCancelled,
    Stop.TIMEOUT: JobTimeout,
    Stop.SHUTDOWN: JobInterrupted,
    Stop.LEASE: JobInterrupted,
}
# How many seconds a cancelled function has to check `is_cancelled` before it is interrupted.
GRACE_SECONDS = 0.5
# How soon an interrupt that could not be raised is tried again.
INTERRUPT_AGAIN_SECONDS = 0.01
# How often to look for the query that delays an interrupt, and cancel it.
QUERY_SECONDS = 0.25
ENDED = "The handler has ended, and with it its database connections."
# From a handler's end, however it ended, to what is to be written. Never raises.
Judge = Callable[[Any, BaseException | None], Ended]


class OwnHandlerThread(Executor):
    """The thread for a coroutine's ORM calls: borrowed when it first makes one."""

    def __init__(self, handler_threads: HandlerThreads) -> None:
        self._threads = handler_threads

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        inflight = current_inflight.get()
        if inflight is None or inflight.on_late_child is not None:
            raise RuntimeError(ENDED)
        return _handler_thread(inflight, self._threads).submit(fn, *args, **kwargs)


def enter_handler_threads(handler_threads: HandlerThreads) -> None:
    """Entered once, in the context from which all handlers start: doing so for each handler would
    take longer than anything else that the worker does for a job."""
    with contextlib.suppress(StopIteration):  # it awaits nothing
        ThreadSensitiveContext(executor=OwnHandlerThread(handler_threads)).__aenter__().send(None)  # type: ignore[no-untyped-call]


def _handler_thread(inflight: InFlight, handler_threads: HandlerThreads) -> HandlerThread:
    if (handler_thread := inflight.handler_thread) is None:
        handler_thread = inflight.attach_thread(handler_threads.borrow())
        handler_thread.submit(handler_thread.prepare)
    return handler_thread


async def run_coroutine(
    inflight: InFlight,
    handler_threads: HandlerThreads,
    leftover_tasks: LeftoverTasks,
    call: Callable[[], Any],
    judge: Judge,
) -> Ended:
    """Await an `async def` handler, which has a thread of its own for the ORM."""
    value: Any = None
    error: BaseException | None = None
    steps = None
    try:
        inflight.interrupt_by(lambda why, cleanup_seconds: _cancel(inflight, handler_threads))
        value = await (steps := ForkGuard(call()))
    except BaseException as raised:
        if steps is not None and steps.closed:  # the loop has ended, and this task with it
            raise
        error = raised
    inflight.interrupt_by(None)
    leftover_tasks.collect(inflight)
    if inflight.calls is not None:
        await inflight.calls.outlast()
    if error is None and inflight.handler_thread is None and _is_small(value):
        return judge(value, None)
    # Classified in its thread, so that a big result or a slow message delays no other handler. The
    # thread first finishes the calls that the coroutine left in it; only then has it ended.
    handler_thread = _handler_thread(inflight, handler_threads)
    judged = handler_thread.submit(
        copy_context().run, _classify_in_thread, handler_thread, judge, value, error
    )
    del value, error  # held by this frame, an error would hold itself
    await _outlast(judged, handler_thread, handler_threads)
    return judged.result()  # type: ignore[no-any-return]


def _is_small(value: Any) -> bool:
    match value:
        case None | True | False:
            return True
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() < 64)
    return kind is float or (kind is str and len(value) < 1_000)


def _classify_in_thread(
    handler_thread: HandlerThread, judge: Judge, value: Any, error: BaseException | None
) -> Ended:
    try:
        return judge(value, error)
    finally:
        handler_thread.tidy()


async def _outlast(
    judged: Future[Any], handler_thread: HandlerThread, handler_threads: HandlerThreads
) -> None:
    """Wait for the thread through any number of cancels: they are for the handler, which has ended
    already. Queries that it left running are cancelled."""
    waiting = asyncio.wrap_future(judged)
    while not waiting.done():
        if handler_thread.pending > 1 and (cancel := handler_thread.queries()):
            handler_threads.apart(cancel)
        try:
            await asyncio.wait(
                {waiting}, timeout=QUERY_SECONDS if handler_thread.pending > 1 else None
            )
        except asyncio.CancelledError:
            continue


def _cancel(inflight: InFlight, handler_threads: HandlerThreads) -> None:
    if inflight.task is not None:
        inflight.task.cancel()
    if (
        inflight.handler_thread is not None
        and inflight.handler_thread.pending
        and (cancel := inflight.handler_thread.queries())
    ):
        # The coroutine continues at once, but its query would keep the thread until it ends.
        handler_threads.apart(cancel)


def run_function(
    inflight: InFlight,
    handler_threads: HandlerThreads,
    call: Callable[[], Any],
    judge: Judge,
    *,
    interruptible: bool,
) -> Future[Ended]:
    """Start a plain handler in a thread; the future ends when it has really ended."""
    handler_thread = inflight.attach_thread(handler_threads.borrow())
    loop = asyncio.get_running_loop()
    if interruptible:
        inflight.interrupt_by(_Interrupter(inflight, handler_thread, handler_threads, loop).stop)
    context, before = copy_context(), forks()

    def run() -> Ended:
        try:
            handler_thread.prepare()
            handler_thread.bridge(loop)
            value, error = context.run(handler_thread.run_user_code, call)
        except BaseException as broken:
            value, error = None, broken
        leave_if_forked(before, error)
        try:
            return context.run(judge, value, error)
        finally:
            del value, error
            context.run(handler_thread.tidy)  # its log lines name the job

    return handler_thread.submit(run)


class _Interrupter:
    """Raises an exception in a plain handler's thread, and cancels the query that keeps it out."""

    def __init__(
        self,
        inflight: InFlight,
        handler_thread: HandlerThread,
        handler_threads: HandlerThreads,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.inflight, self.handler_thread, self.handler_threads, self.loop = (
            inflight,
            handler_thread,
            handler_threads,
            loop,
        )

    def stop(self, why: Stop, cleanup_seconds: float) -> None:
        """Called on the loop. A cancel gives the handler a moment to check `is_cancelled`; one that
        has checked gets its full time to clean up."""
        if why is not Stop.CANCEL:
            self._raise(why)
            return
        grace = min(GRACE_SECONDS, cleanup_seconds)
        self.loop.call_later(grace, self._unless_seen, cleanup_seconds - grace)

    def _unless_seen(self, cleanup_seconds: float) -> None:
        if self.inflight.control.seen:
            self.loop.call_later(cleanup_seconds, self._raise, Stop.CANCEL)
        else:
            self._raise(Stop.CANCEL)

    def _raise(self, why: Stop) -> None:
        if self.inflight.ended or not self.handler_thread.is_open:
            return
        landed: list[bool] = []
        if self.handler_thread.interrupt(self._kind(why, landed)):
            for task in self.inflight.children or ():
                task.cancel()  # the thread waits for it in async_to_sync
            self._free_thread(landed)
        else:  # not at this moment
            self.loop.call_later(INTERRUPT_AGAIN_SECONDS, self._raise, why)

    def _kind(self, why: Stop, landed: list[bool]) -> type[BaseException]:
        """Return a subclass of the exception that reports when it is raised in the thread, and is
        sent again if the interpreter dropped it there."""
        kind = INTERRUPT[why]

        def raised(error: BaseException, *args: object) -> None:
            self.inflight.mark_interrupt(raised=True)
            landed.append(True)
            kind.__init__(error, *args)

        def redeliver(error: BaseException) -> None:
            self.inflight.mark_interrupt(raised=False)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._raise, why)

        words = {"__init__": raised, "redeliver": redeliver, "__module__": kind.__module__}
        return type(kind.__name__, (kind, Redelivered), words)

    def _free_thread(self, landed: list[bool]) -> None:
        """Cancel the thread's query, since an exception lands only after it. Once it has landed,
        queries belong to the handler's clean-up."""
        if landed or not self.handler_thread.is_open:
            return
        if cancel := self.handler_thread.queries():
            self.handler_threads.apart(
                lambda: cancel() if self.handler_thread.is_open and not landed else None
            )
        self.loop.call_later(QUERY_SECONDS, self._free_thread, landed)


_watched = False


class Redelivered:
    """Mixed into an interrupt's class: what to do when the interpreter has dropped it."""

    redeliver: Callable[[], None]


def watch_swallowed() -> None:
    """Have dropped interrupts sent again; everything else goes to the former hook."""
    global _watched
    if _watched:
        return
    former, _watched = sys.unraisablehook, True

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Redelivered):
            unraisable.exc_value.redeliver()
        else:
            former(unraisable)

    sys.unraisablehook = hook
