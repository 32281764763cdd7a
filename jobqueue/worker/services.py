"""The long-lived tasks of a worker. This is their one owner, which awaits them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from jobqueue.logs import get_logger
from jobqueue.store.error_classes import is_transient

# Seconds a cancelled task may take to unwind. A database call has dropped its socket by then.
UNWIND_SECONDS = 0.3
log = get_logger()


class Services:
    """A service that returns or fails unasked starts the shutdown: a worker never runs with a
    service missing."""

    def __init__(self, on_end: Callable[[str, BaseException | None], None]) -> None:
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._expected: set[str] = set()

    def start(self, name: str, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(service, name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))
        return task

    def get(self, name: str) -> asyncio.Task[None] | None:
        return self._tasks.get(name)

    def expect(self, *names: str) -> None:
        """These services may end from now on."""
        self._expected.update(names)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if name not in self._expected:
            log.critical("service_ended", service=name, exc_info=error)
            self._on_end(name, error)
        elif error is not None:
            log.error("service_stop_failed", service=name, exc_info=error)

    async def end(self, name: str, seconds: float) -> None:
        """Wait for a service that was asked to end; cancel it when its time is up."""
        task = self._tasks.pop(name, None)
        if task is not None:
            self._expected.add(name)
            await asyncio.wait({task}, timeout=seconds)
            await unwind({task}, UNWIND_SECONDS)

    async def cancel_all(self, seconds: float) -> None:
        """Cancel all services still running, at once, and await each."""
        self._expected.update(self._tasks)
        tasks, self._tasks = set(self._tasks.values()), {}
        await unwind(tasks, seconds)


async def unwind(tasks: set[asyncio.Task[None]], seconds: float) -> None:
    """Cancel tasks and await them, for this many seconds; return those that did not end."""
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=seconds)
    if left:
        log.error("tasks_abandoned", tasks=sorted(task.get_name() for task in left))


async def within(seconds: float, what: str, work: Coroutine[Any, Any, Any]) -> bool:
    """Run one step of the shutdown for at most this many seconds; return whether it completed. One
    that fails or runs out of time is logged, and the next one begins."""
    task = asyncio.create_task(work, name=what)
    await asyncio.wait({task}, timeout=max(seconds, 0))
    if not task.done():
        log.warning("shutdown_step_skipped", step=what)
        await unwind({task}, UNWIND_SECONDS)
        if task.done() and not task.cancelled():
            task.exception()  # retrieved: the loser of the race is logged above
        return False
    error = None if task.cancelled() else task.exception()
    if error is not None and is_transient(error):
        log.warning("shutdown_step_skipped", step=what, error=str(error).strip())
    elif error is not None:
        log.error("shutdown_step_failed", step=what, exc_info=error)
    return error is None
