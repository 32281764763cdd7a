"""How one handler runs: a coroutine on the loop, or a function in its lane's thread.

Either way it ends as a value or an error, never as an exception that reaches the loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar, copy_context
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.db import transaction

from jobqueue.exceptions import JobCancelled, JobInterrupted, JobTimeout
from jobqueue.worker.held import Held, Stop
from jobqueue.worker.lanes import Lane, Lanes, tidy_connections

INTERRUPT: dict[Stop, type[BaseException]] = {
    Stop.CANCEL: JobCancelled,
    Stop.TIMEOUT: JobTimeout,
    Stop.SHUTDOWN: JobInterrupted,
    Stop.LEASE: JobInterrupted,
}
# How long a cancelled function may look at `is_cancelled` before it is interrupted.
LOOK_SECONDS = 0.5
# The claim whose handler runs here: what it starts on the loop belongs to it.
current_held: ContextVar[Held | None] = ContextVar("jobqueue_current_held", default=None)

Ended = tuple[Any, BaseException | None]  # value, error


class LazyLane(Executor):
    """The lane of a coroutine: a thread is taken only when it first uses the ORM."""

    def __init__(self, held: Held, lanes: Lanes) -> None:
        self._held, self._lanes = held, lanes

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        lane: Lane | None = self._held.lane
        if lane is None:
            lane = self._held.lane = self._lanes.take()
            lane.submit(lane.prepare)
        return lane.submit(fn, *args, **kwargs)


async def run_coroutine(held: Held, lanes: Lanes, call: Callable[[], Any]) -> Ended:
    """Await an `async def` handler in a lane of its own."""
    process = os.getpid()
    try:
        async with ThreadSensitiveContext(executor=LazyLane(held, lanes)):
            held.interrupt = lambda why: _cancel(held, lanes)
            value, error = await call(), None
    except BaseException as raised:
        value, error = None, raised
    held.interrupt = None
    leave_if_forked(process)
    if held.lane is not None:
        # Behind every call that the coroutine left running there: it has not ended before.
        await _outlast(held.lane.submit(tidy_connections))
    return value, error


async def _outlast(call: Future[Any]) -> None:
    """Wait for a lane's call through any number of cancels: they are for the handler, which has
    ended as a value already."""
    waiting = asyncio.wrap_future(call)
    while not waiting.done():
        try:
            await asyncio.wait({waiting})
        except asyncio.CancelledError:
            continue


def _cancel(held: Held, lanes: Lanes) -> None:
    if held.task is not None:
        held.task.cancel()
    if held.lane is not None and held.lane.pending:
        # The coroutine goes on at once, but its query would keep the lane until it ends.
        lanes.cancel_query(held.lane)


def run_function(
    held: Held,
    lanes: Lanes,
    call: Callable[[], Any],
    *,
    interruptible: bool,
    record: Callable[[Any, Lane], None] | None,
    database: str,
) -> Future[Ended]:
    """Start a plain handler in a lane's thread; the future ends when it has really ended.

    With `record` the handler and the recording of its success are one transaction.
    """
    lane = held.lane = lanes.take()
    loop = asyncio.get_running_loop()
    if interruptible:
        held.interrupt = lambda why: _interrupt(held, lane, lanes, loop, why)
    context, process = copy_context(), os.getpid()

    def atomically() -> Any:
        with transaction.atomic(using=database):
            value = call()
            lane.shut_interrupts()  # the commit must not be cut: its answer decides
            assert record is not None  # noqa: S101
            record(value, lane)
        return value

    def run() -> Ended:
        lane.prepare()
        ended = context.run(lane.run_user_code, call if record is None else atomically)
        leave_if_forked(process)
        tidy_connections()
        return ended

    return lane.submit(run)


def _interrupt(
    held: Held, lane: Lane, lanes: Lanes, loop: asyncio.AbstractEventLoop, why: Stop
) -> None:
    def raise_there() -> None:
        if not held.ended and lane.interrupt(INTERRUPT[why]):
            lanes.cancel_query(lane)

    if why is Stop.CANCEL:
        loop.call_later(LOOK_SECONDS, raise_there)
    else:
        raise_there()


def leave_if_forked(process: int) -> None:
    """A child that a handler forked came back into the worker's code: it owns none of its sockets
    and must not go on as a second worker."""
    if os.getpid() != process:
        os._exit(1)


def adopt_children(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> asyncio.Task[Any]:
    """The loop's task factory: a task that a handler starts is noted as that handler's."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    held = current_held.get()
    if held is not None:
        if held.children is None:
            held.children = set()
        held.children.add(task)
        task.add_done_callback(held.children.discard)
    return task
