"""The long-lived tasks of a worker: each has this one owner, who awaits it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger("jobqueue")


class Services:
    """A service that returns or fails while nobody asked it to starts the shutdown: a worker is
    never half-staffed."""

    def __init__(self, on_end: Callable[[str, BaseException | None], None]) -> None:
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._expected: set[str] = set()

    def start(self, name: str, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(service, name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))
        return task

    def expect(self, name: str) -> None:
        """From here on this service may end."""
        self._expected.add(name)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if name in self._expected or task.cancelled():
            return
        error = task.exception()
        log.critical("service_ended", service=name, exc_info=error)
        self._on_end(name, error)

    async def end(self, name: str, seconds: float) -> None:
        """Wait for a service that has been told to end; cancel it when the time is over."""
        task = self._tasks.pop(name, None)
        if task is None:
            return
        self.expect(name)
        await asyncio.wait({task}, timeout=seconds)
        await self._cancel(task)

    async def cancel_all(self) -> None:
        """Cancel what still serves, and await every one."""
        self._expected.update(self._tasks)
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            await self._cancel(task)

    async def _cancel(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # told by _ended already
            await task
