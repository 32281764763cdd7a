"""Parked jobs whose task this worker knows: made READY for its free slots, right before a claim."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from django.tasks import Task

from jobqueue import tasks
from jobqueue.clock import loop_time
from jobqueue.store import parked
from jobqueue.worker.threads.handler_thread import HandlerThread, HandlerThreads
from jobqueue.worker.threads.resolving import resolve_in_thread

LOOK_SECONDS = 10.0
# Until the next look, where other workers took what was promoted here: they may not know the task.
LOST_RACE_SECONDS = 1.0
# After that a look-up that has not ended no longer holds up the others.
LOOKUP_SECONDS = 10.0
UNKNOWN_SECONDS, UNKNOWN_MAX_SECONDS = 10.0, 600.0
MOST_TASKS = 1_000

type Call = Callable[..., Awaitable[Any]]


class ParkedJobs:
    """Nothing is promoted that this worker does not claim at once, as far as others leave it."""

    def __init__(
        self,
        handler_threads: HandlerThreads,
        *,
        serves: Callable[[str], bool],
        taken: Callable[[], int],
        on_known: Callable[[], None],
    ) -> None:
        """`serves`: whether jobs of this queue run here. `taken`: how many jobs that had been
        parked were claimed here so far. `on_known`: a task was found that jobs are parked for."""
        self.handler_threads = handler_threads
        self.serves, self.taken, self.on_known = serves, taken, on_known
        self._looked_at = float("-inf")
        self._promoted = self._taken_before = 0
        self._unsure: list[str] = []  # tasks that are to be looked up
        self._asked_at: float | None = None  # when the look-up began that runs now
        # When to ask again, and how long after that.
        self._unknown: dict[str, tuple[float, float]] = {}

    @property
    def due(self) -> float:
        """When to look next, by the loop's clock."""
        if not self._promoted:
            return self._looked_at + LOOK_SECONDS
        if self.taken() - self._taken_before >= self._promoted:
            return self._looked_at  # there may be more, and a slot is free
        return self._looked_at + LOST_RACE_SECONDS

    async def promote(self, call: Call, free: int) -> list[str]:
        """Make at most as many jobs READY as there are free slots; return the queue of each."""
        self._looked_at, self._promoted = loop_time(), 0
        found = await call(parked.tasks, MOST_TASKS)
        served = [(queue, task) for queue, task in found if self.serves(queue)]
        known = [pair for pair in served if tasks.known(pair[1]) is not None]
        self._ask({task for _, task in served} - {task for _, task in known})
        if not known:
            return []
        random.shuffle(known)  # where there are more than slots, none has to wait for ever
        queues: list[str] = await call(parked.promote, known, free)
        self._promoted, self._taken_before = len(queues), self.taken()
        return queues

    def _ask(self, unsure: set[str]) -> None:
        now = loop_time()
        self._unknown = {task: until for task, until in self._unknown.items() if task in unsure}
        self._unsure = [task for task in unsure if self._unknown.get(task, (now, 0.0))[0] <= now]
        if self._asked_at is None or now - self._asked_at > LOOKUP_SECONDS:
            self._ask_next()

    def _ask_next(self) -> None:
        """In a handler's thread: the import of a module may touch the database, or take long."""
        self._asked_at = None
        if not self._unsure:
            return
        task, self._asked_at = self._unsure.pop(), loop_time()
        thread = self.handler_threads.borrow()
        asked = asyncio.wrap_future(thread.submit(resolve_in_thread, thread, task))
        asked.add_done_callback(partial(self._answered, task, thread))

    def _answered(
        self, task: str, thread: HandlerThread, answer: asyncio.Future[Task[..., Any]]
    ) -> None:
        if answer.cancelled():
            return
        self.handler_threads.give_back(thread)
        if answer.exception() is not None:
            _, wait = self._unknown.get(task, (0.0, UNKNOWN_SECONDS))
            self._unknown[task] = (loop_time() + wait, min(2 * wait, UNKNOWN_MAX_SECONDS))
        else:
            self._looked_at, self._promoted = float("-inf"), 0
            self.on_known()
        self._ask_next()
