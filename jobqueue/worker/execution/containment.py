"""The steps of a handler's coroutines, and of the tasks that it starts: contained."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from jobqueue.logs import get_logger
from jobqueue.worker.inflight import InFlight
from jobqueue.worker.process.signals import HANDLED
from jobqueue.worker.threads import orm_connections

# The claim whose handler runs here: what it starts on the loop belongs to it.
current_inflight: ContextVar[InFlight | None] = ContextVar(
    "jobqueue_current_inflight", default=None
)


class ForkGuard(Coroutine[Any, Any, Any]):
    """A coroutine that notices after each step whether the handler forked; the child ends there.

    A child that a handler forked returns to the worker's code at the end of the step: it owns
    none of the worker's sockets, and must not carry on as a second worker.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner if hasattr(inner, "send") else inner.__await__()
        self.forks = forks()
        self.closed = False  # from outside: nothing awaits it any more
        self.__name__ = getattr(inner, "__name__", type(inner).__name__)
        self.__qualname__ = getattr(inner, "__qualname__", self.__name__)

    # Read by stacks and task representations.
    @property
    def cr_frame(self) -> Any:
        return getattr(self.inner, "cr_frame", None) or getattr(self.inner, "gi_frame", None)

    @property
    def cr_await(self) -> Any:
        return getattr(self.inner, "cr_await", None) or getattr(self.inner, "gi_yieldfrom", None)

    @property
    def cr_code(self) -> Any:
        return getattr(self.inner, "cr_code", None) or getattr(self.inner, "gi_code", None)

    @property
    def cr_running(self) -> bool:
        return bool(getattr(self.inner, "cr_running", False))

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> ForkGuard:
        return self

    def __next__(self) -> Any:
        return self._step(self.inner.send, None)

    def send(self, value: Any) -> Any:
        return self._step(self.inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self.inner.throw, *error)

    def close(self) -> None:
        self.closed = True
        self._step(self.inner.close)

    def _step(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            waits_for = call(*args)
        except BaseException as error:
            leave_if_forked(self.forks, error)
            raise
        if _forks != self.forks:
            leave_if_forked(self.forks, RuntimeError("the child went back to the worker's loop"))
        return waits_for


class GuardedTask(ForkGuard):
    """The coroutine of a task that a handler started: asyncio would let these two errors end the
    worker's loop."""

    def _step(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return super()._step(call, *args)
        except (SystemExit, KeyboardInterrupt) as error:
            kind = type(error).__name__
            raise RuntimeError(f"a task of the handler raised {kind}: {error}") from error


# How many forks lie between this process and the one that imported this. Asking the system for the
# process's number takes long, at every step of every handler.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def forks() -> int:
    """Return a number that differs in a forked child."""
    return _forks


def leave_if_forked(before: int, error: BaseException | None) -> None:
    """End a forked child as it would have ended by itself; do nothing in the worker."""
    if _forks == before:
        return
    match error:
        case SystemExit(code=int(code)):
            os._exit(code & 0xFF)
        case None | StopIteration() | SystemExit(code=None):
            os._exit(0)
    os._exit(1)


def adopt_children(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> asyncio.Task[Any]:
    """The loop's task factory: a task that a handler starts is noted as that handler's."""
    inflight = current_inflight.get()
    if inflight is None:
        return asyncio.Task(coroutine, loop=loop, **options)
    task: asyncio.Task[Any] = asyncio.Task(GuardedTask(coroutine), loop=loop, **options)
    inflight.add_child(task)
    return task


COLLECT_SECONDS = 1.0
log = get_logger()


class LeftoverTasks:
    """The owner of tasks that a handler started and did not await."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def collect(self, inflight: InFlight) -> None:
        """The handler has ended: none of its tasks may continue or begin."""
        left = inflight.release_children(self._cancel)
        for task in left:
            self._cancel(task)
        if left:
            claim = inflight.claim
            log.warning("tasks_leaked", job=claim.id, task=claim.task, count=len(left))

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("leaked_task_failed", name=task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Wait a second for those still unwinding; the rest end with the process."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=COLLECT_SECONDS)


_forks_watched = False


def watch_forks() -> None:
    """Count forks from now on. Only those by handlers matter."""
    global _forks_watched
    if not _forks_watched:
        os.register_at_fork(after_in_parent=_log_fork, after_in_child=_disinherit)
        _forks_watched = True


def _log_fork() -> None:
    inflight = current_inflight.get()
    if inflight is not None:
        log.error(
            "handler_forked",
            job=inflight.claim.id,
            task=inflight.claim.task,
            note="the child inherited the worker's sockets; start a program instead",
        )


def _disinherit() -> None:
    """A signal sent to the child must not reach the worker through the shared wake-up socket, and
    a query of the child must not go out on the handler's session."""
    if current_inflight.get() is None:
        return
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)
    orm_connections.forget_connections()
