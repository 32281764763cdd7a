"""When a worker stops by itself: drain mode, and --max-runtime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from jobqueue.clock import loop_time
from jobqueue.logs import get_logger
from jobqueue.store import idleness
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import is_transient
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.options import WorkerOptions
from jobqueue.worker.shutdown import CLOSE_SECONDS

OUT_OF_TIME = "max runtime"
# So much of a start does not count; what the database keeps it waiting beyond that does.
START_SECONDS = 5.0


class Limits:
    """`stop` starts the shutdown, with its reason. The time counts from when the worker serves."""

    def __init__(
        self,
        options: WorkerOptions,
        session: Session,
        worker: UUID,
        registry: InFlightJobs,
        stop: Callable[[str], None],
    ) -> None:
        self.options, self.session, self.registry, self.stop = options, session, registry, stop
        self.worker = worker
        self.verdict: IdleVerdict | None = None
        self.died = 0  # jobs that were seen to die, in drain mode
        self._watch: IdleWatch | None = None
        limit = options.max_runtime
        # At the latest, however long the start takes.
        self._end = None if limit is None else loop_time() + START_SECONDS + limit

    @property
    def are_set(self) -> bool:
        return self.options.until_idle or self._end is not None

    @property
    def code(self) -> int:
        """The exit code of a clean stop."""
        return 0 if self.verdict is None else self.verdict.code

    @contextlib.contextmanager
    def while_starting(self) -> Iterator[None]:
        """Time spent waiting for the database counts as well."""
        timer = None
        if self._end is not None:
            timer = asyncio.get_running_loop().call_at(self._end, self._out_of_time)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    def _out_of_time(self) -> None:
        self.verdict = IdleVerdict(idle=False)
        self.stop(OUT_OF_TIME)

    async def run(self) -> None:
        """The service: returns once it has requested the stop."""
        left = self.options.max_runtime
        if left is not None and self._end is not None:
            left = max(min(left, self._end - loop_time()), 0.0)
        if self.options.until_idle:
            inflight = self.registry.__len__
            queues = list(self.options.queues)
            self._watch = IdleWatch(
                self.session, queues, self.worker, max_runtime=left, inflight=inflight
            )
            self.verdict = await self._watch.wait()
        elif left is not None:
            await asyncio.sleep(left)
        if self.verdict is not None and self.verdict.idle:
            self.stop("idle")
        else:
            self.verdict = self.verdict or IdleVerdict(idle=False)
            self.stop(OUT_OF_TIME)

    async def confirm(self) -> None:
        """Count the dead jobs once more: some ended after the last look."""
        if self._watch is None:
            return
        looked = await self._watch.confirm(self.verdict or IdleVerdict(idle=False), CLOSE_SECONDS)
        self.died = looked.died
        if self.verdict is not None:
            self.verdict = looked


LOOK_SECONDS = 1.0
SETTLE_SECONDS = 2.0
COUNT_SECONDS = 10.0
log = get_logger()


@dataclass(frozen=True, slots=True)
class IdleVerdict:
    """How a drain ended, and what it left."""

    idle: bool  # False: --max-runtime came first
    died: int = 0  # jobs of the served queues that died since the start, whoever ran them
    parked: int = 0  # waiting for a worker whose code has their task
    paused: tuple[str, ...] = ()  # queues with jobs that no worker may claim

    @property
    def code(self) -> int:
        """The exit code: 0 all well, 3 drained but a job died, 4 the limit came first."""
        if not self.idle:
            return 4
        return 3 if self.died else 0


class IdleWatch:
    """Waits until the queues have been empty, in the table and here, for two seconds in a row.

    `inflight` returns how many claims this process still has. A failed query proves nothing: only a
    count that came back as zero does.
    """

    def __init__(
        self,
        session: Session,
        queues: Sequence[str],
        worker: UUID,
        *,
        max_runtime: float | None,
        inflight: Callable[[], int],
    ) -> None:
        self.session, self.queues, self.inflight = session, tuple(queues), inflight
        self.worker, self.max_runtime = worker, max_runtime
        self._latest: idleness.Left | None = None

    async def wait(self) -> IdleVerdict:
        """Return when there is nothing left, or the time is up."""
        start = loop_time()
        end = None if self.max_runtime is None else start + self.max_runtime
        idle_since: float | None = None
        while end is None or loop_time() < end:
            looked = loop_time()
            if not await self._is_idle(end):
                idle_since = None
            elif idle_since is None:
                idle_since = looked
            elif looked - idle_since >= SETTLE_SECONDS:
                return self._verdict(idle=True)
            pause = looked + LOOK_SECONDS - loop_time()
            await asyncio.sleep(max(0.0, pause if end is None else min(pause, end - loop_time())))
        return self._verdict(idle=False)

    async def confirm(self, verdict: IdleVerdict, seconds: float = 1.0) -> IdleVerdict:
        """After the shutdown: count the dead jobs once more; some ended after the last look."""
        await self._is_idle(loop_time() + seconds)
        return self._verdict(idle=verdict.idle)

    async def _is_idle(self, end: float | None) -> bool:
        bound = COUNT_SECONDS if end is None else max(min(COUNT_SECONDS, end - loop_time()), 0.1)
        horizon = None if end is None else end - loop_time()
        try:
            left = await self.session.call(idleness.left, bound, self.queues, horizon, self.worker)
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("idle_check_failed", error=repr(error))
            return False
        if self._latest is None and left.schedules:
            log.warning("idle_schedules_found", schedules=left.schedules)
        self._latest = left
        return left.idle and self.inflight() == 0

    def _verdict(self, *, idle: bool) -> IdleVerdict:
        left = self._latest
        if left is None:
            return IdleVerdict(idle=idle)
        if left.parked or left.newer or left.paused:
            log.warning(
                "idle_jobs_left", parked=left.parked, newer=left.newer, paused_queues=left.paused
            )
        return IdleVerdict(idle=idle, died=left.died, parked=left.parked, paused=tuple(left.paused))
