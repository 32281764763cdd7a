"""The leader's work as a table of steps: one bounded batch at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf

from psycopg.errors import QueryCanceled

from jobqueue.clock import loop_time
from jobqueue.logs import get_logger
from jobqueue.store.connections import ExponentialBackoff
from jobqueue.store.error_classes import is_transient
from jobqueue.worker.outages import OutageLog

UNEXPECTED_IN_A_ROW = 5
# A step that is requested continually must leave room for the others.
PAUSE_SECONDS = 0.02
TIMEOUTS_UNTIL_SMALLER, TIMEOUT_WINDOW_SECONDS = 3, 600.0
log = get_logger()


class StuckError(Exception):
    """No step has succeeded for a while: another worker should lead."""


@dataclass(slots=True)
class Step:
    """One row of the table. `run` does one batch of at most `limit` rows and says whether there is
    more. Without an interval (seconds) it runs only when another step or a notification asks for
    it."""

    name: str
    run: Callable[[int], Awaitable[bool]]
    limit: int = 100
    interval: float = inf
    due: float = inf  # monotonic, as all moments here
    ran: float = -inf
    unexpected: int = 0
    transient_backoff: ExponentialBackoff = field(default_factory=ExponentialBackoff)
    error_backoff: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(1.0, 60.0))
    timeouts: deque[float] = field(default_factory=deque)

    def wake(self, moment: float) -> None:
        """Run at this moment, or earlier if it is due earlier."""
        self.due = min(self.due, max(moment, self.ran + PAUSE_SECONDS))


class Maintenance:
    """Runs the steps in the order in which they fall due. One object serves all terms."""

    def __init__(self, *steps: Step, stuck_seconds: float, outage_log: OutageLog) -> None:
        """`stuck_seconds`: without any success for this long, StuckError is raised."""
        self.steps: dict[str, Step] = {}
        self.add(*steps)
        self.stuck_seconds, self.outage_log = stuck_seconds, outage_log
        self._woken = asyncio.Event()
        self._failing_since: float | None = None  # no step has succeeded since

    def add(self, *steps: Step) -> None:
        """Add steps to the table."""
        self.steps |= {step.name: step for step in steps}

    def wake(self, name: str, moment: float) -> None:
        """Run a step at this moment of the loop's clock."""
        self.steps[name].wake(moment)
        self._woken.set()

    async def run(self) -> None:
        """Work until cancelled. Raises StuckError, or an error that came five times in a row."""
        loop = asyncio.get_running_loop()
        self._failing_since = None
        for step in self.steps.values():
            step.due = loop.time() if step.interval < inf else inf
        while True:
            # The step that has waited longest comes first, so a backlog starves no other step.
            step = min(self.steps.values(), key=lambda step: step.due)
            if step.due > loop.time():
                await self._sleep_until(step.due)
            else:
                await self.once(step)

    async def _sleep_until(self, moment: float) -> None:
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(None if moment == inf else moment):
                await self._woken.wait()

    async def once(self, step: Step) -> None:
        """Run one batch; an error affects only its step."""
        loop = asyncio.get_running_loop()
        step.ran = loop.time()
        # Before the batch: a request that comes during it must not be overwritten.
        step.due = step.ran + step.interval
        try:
            more = await step.run(step.limit)
        except Exception as error:
            self._failed(step, error)
            return
        self._failing_since = None
        self.outage_log.end("maintenance")
        step.transient_backoff.reset()
        step.error_backoff.reset()
        step.unexpected = 0
        if more:
            step.due = loop.time()

    def _failed(self, step: Step, error: Exception) -> None:
        now = loop_time()
        if not is_transient(error):
            step.unexpected += 1
            log.error("maintenance_failed", step=step.name, exc_info=error)
            if step.unexpected >= UNEXPECTED_IN_A_ROW:
                raise error
            step.due = now + step.error_backoff.next_delay()
            return
        failures = step.transient_backoff.failures + 1
        if not _is_from_this_statement(error):
            self.outage_log.begin("maintenance", error)
        elif failures & (failures - 1) == 0:  # a lasting problem logs few lines
            log.warning("maintenance_failed", step=step.name, error=repr(error), failures=failures)
        if isinstance(error, QueryCanceled):
            self._shrink(step, now)
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > self.stuck_seconds:
            raise StuckError(f"{step.name}: {error!r}") from error
        step.due = now + step.transient_backoff.next_delay()

    def _shrink(self, step: Step, now: float) -> None:
        """A batch that keeps timing out must become smaller to make progress."""
        step.timeouts.append(now)
        while now - step.timeouts[0] > TIMEOUT_WINDOW_SECONDS:
            step.timeouts.popleft()
        if len(step.timeouts) >= TIMEOUTS_UNTIL_SMALLER and step.limit > 1:
            step.limit = max(1, step.limit // 4)
            step.timeouts.clear()
            log.warning("maintenance_batch_reduced", step=step.name, limit=step.limit)


def _is_from_this_statement(error: Exception) -> bool:
    """Whether the server answered: a timeout, a lock, a deadlock. Otherwise all steps fail."""
    state = getattr(error, "sqlstate", None) or ""
    return state == QueryCanceled.sqlstate or state[:2] in {"40", "55"}
