"""Tasks that a handler left behind on the loop: cancelled, collected, and told about."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from jobqueue.worker.inflight import Held

COLLECT_SECONDS = 1.0
log = structlog.get_logger("jobqueue")


class Strays:
    """The owner of what a handler started and did not await."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def collect(self, held: Held) -> None:
        """The handler has ended: nothing of it may go on, nor begin."""
        held.on_stray = self._cancel
        left = [task for task in held.children or () if not task.done()]
        held.children = None
        for task in left:
            self._cancel(task)
        if left:
            claim = held.claim
            log.warning("tasks_left_behind", job=claim.id, task=claim.task, count=len(left))

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("left_behind_task_failed", name=task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Wait a second for those that are still unwinding; the rest ends with the process."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=COLLECT_SECONDS)
