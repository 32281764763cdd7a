"""Claims as many jobs as there are free slots, one queue at a time, and starts each at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import structlog

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.store import promotion
from jobqueue.store.claims import Claim
from jobqueue.store.connections import Session
from jobqueue.worker.claiming.claim_round import CALL_SECONDS, Intake, Rounds
from jobqueue.worker.claiming.lost_claims import LostClaims
from jobqueue.worker.claiming.promotion_timer import PromotionTimer
from jobqueue.worker.claiming.queue_selector import QueueSelector
from jobqueue.worker.claiming.scan_cursor import ScanCursor
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.outages import ErrorPolicy
from jobqueue.worker.outcomes.completer import Completer

PROMOTE_LIMIT = 500
# After a round that found less than it asked for: a burst of wakes costs one more round.
PAUSE_SECONDS = 0.006
# So long after a wake its sender may spare those of later jobs; the pause is longer.
THIN_SECONDS = 0.005
# The time that a write takes which frees more slots than are free now.
MERGE_SECONDS = 0.01
# A lost event costs at most this; so does a round whose answer is in doubt.
BOUND_SECONDS = 1.0
SETTLE_SECONDS = 1.0
# From this concurrency on two connections claim in turn, so that the server and this process work
# at the same time. Smaller rounds would cost more than that brings.
TWO_FROM = 30
log = structlog.get_logger("jobqueue")


def share_of(concurrency: int) -> int:
    """Return how many of the slots one connection's round fills again at most."""
    return concurrency if concurrency < TWO_FROM else (concurrency + 1) // 2


class Claimer:
    """The only intake. No local queue: what is claimed is started before anything is awaited."""

    def __init__(
        self,
        sessions: tuple[Session, Session],
        worker: UUID,
        queues: Mapping[str, int],
        settings: Settings,
        registry: InFlightJobs,
        executor: Executor,
        error_policies: tuple[ErrorPolicy, ErrorPolicy],
        *,
        is_notified: Callable[[], bool],
        notify_ready: Callable[[str], None],
        is_overdue: Callable[[], bool],
    ) -> None:
        """`is_notified`: whether notifications arrive. `notify_ready` wakes the other workers.
        `is_overdue`: whether scheduled jobs are due that no leader has promoted."""
        self.session, self.settings = sessions[0], settings
        self.registry = registry
        self.error_policies = error_policies
        self.outcomes: Completer = executor.completer
        self.is_notified, self.notify_ready, self.is_overdue = is_notified, notify_ready, is_overdue
        self.selector, self.cursor = QueueSelector(queues), ScanCursor()
        self.promotion_timer = PromotionTimer()
        self._wake, self._help, self._stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._doubts = LostClaims(self.session, worker)
        self._polled_at, self._jitter = float("-inf"), 1.0
        self._woken_at = float("-inf")
        self._plenty: set[str] = set()  # queues whose last round found all it asked for
        self.intake = Intake(
            worker=worker,
            settings=settings,
            registry=registry,
            executor=executor,
            lost_claims=self._doubts,
            cursor=self.cursor,
            stopped=self._stopped,
            share=share_of(settings.concurrency),
        )
        self.rounds, self.second = (Rounds(session, self.intake) for session in sessions)

    def wake(self, queue: str | None = None, priority: int | None = None) -> None:
        """Jobs of this queue (None: of any) may be ready; a priority says that they are new."""
        if self.selector.heat(queue):
            self.cursor.look(queue, priority)
            self._woken_at = loop_time()
            self._wake.set()

    def poll(self) -> None:
        """Look everywhere at once: scheduled jobs should have become ready by now."""
        self._polled_at = float("-inf")
        self._wake.set()

    def promote_in(self, seconds: float) -> None:
        """A job that was put off here falls due then; the leader may not know."""
        if self.promotion_timer.add(seconds, loop_time()):
            self._wake.set()
            self.registry.freed.set()

    def stop(self) -> None:
        """No further claim is sent; the round in flight is handed back unstarted."""
        self._stopped.set()
        self._wake.set()
        self._help.set()
        self.registry.freed.set()

    async def run(self) -> None:
        """The service: rounds while there is work and room, waiting for either otherwise."""
        self.selector.heat(None)
        try:
            async with asyncio.TaskGroup() as connections:
                connections.create_task(
                    self._serve(self._step, self.error_policies[0]), name="claim"
                )
                if self.intake.share < self.registry.concurrency:
                    second = self._serve(self._help_out, self.error_policies[1])
                    connections.create_task(second, name="claim 2")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _serve(self, step: Callable[[], Awaitable[bool]], error_policy: ErrorPolicy) -> None:
        while not self._stopped.is_set():
            try:
                is_well = await step()
            except Exception as error:
                delay = error_policy.failed(error)
                self.selector.heat(None)
                self.cursor.look(None)  # the round may have been the look for something urgent
                self._wake.set()  # the other connection, if it is idle
                # A wake does not cut this short: it would ask a dead server again and again.
                await self._wait(self._stopped, delay)
            else:
                if is_well:
                    error_policy.succeeded()

    async def settle(self) -> None:
        """At the stop, once the service has ended: the last lost rounds are looked for."""
        with contextlib.suppress(Exception):
            await self._recover(SETTLE_SECONDS)

    async def _step(self) -> bool:
        if self._doubts.are_due(loop_time()):
            await self._recover(CALL_SECONDS)
        room = self.intake.room
        if room <= 0:
            self.registry.freed.clear()
            if self.promotion_timer.take(loop_time()):
                await self._promote(notify=True)
            await self._wait(self.registry.freed, min(BOUND_SECONDS, self._due_in()))
            return True
        # Soon there is more: one large round instead of two.
        if room < self.outcomes.pending.under_way:
            self.registry.freed.clear()
            await self._wait(self.registry.freed, MERGE_SECONDS)
        self._wake.clear()  # before the statement is sent: a wake during the round survives it
        await self._poll()
        queue = self.selector.next()
        if queue is None:
            await self._wait(self._wake, self._idle_seconds())
        else:
            sent = loop_time()
            if not await self._claim(self.rounds, queue):
                await self._fell_short(queue, sent)
        return True

    async def _claim(self, rounds: Rounds, queue: str) -> bool:
        """One round; whether the queue is to be asked again at once: it held all that was asked
        for, and where there is room both connections ask it; or that is not known."""
        found = await rounds.claim(queue)
        if found:
            self._plenty.add(queue)
            self._help.set()
        elif found is False:
            self._plenty.discard(queue)
            return False
        self.selector.heat(queue)
        return True

    async def _help_out(self) -> bool:
        """A step on the second connection, which only asks queues that are known to hold more;
        whether it has shown that the connection works."""
        queue = None
        if not self._doubts and self.intake.room > self.intake.share // 2:
            queue = self.selector.among(self._plenty)
        if queue is None:
            self._help.clear()
            await self._wait(self._help)
            return False
        if not await self._claim(self.second, queue):
            self.selector.heat(queue)  # whether it is really empty is seen on the first one
        self._wake.set()  # which may be idle, since its own round fell short
        return True

    async def _fell_short(self, queue: str, sent: float) -> None:
        """The queue is empty, as far as this round could see."""
        await self._wait(self._stopped, PAUSE_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311
        if sent < self._woken_at + THIN_SECONDS:  # a later job may have spared its own wake
            self.selector.heat(queue)
        elif (rest := self.cursor.rest(queue, sent)) > 0:  # something may stand before the mark
            asyncio.get_running_loop().call_later(rest, self._look_again, queue)

    def _look_again(self, queue: str) -> None:
        if self.selector.heat(queue):
            self._wake.set()

    async def _wait(self, event: asyncio.Event, seconds: float | None = None) -> None:
        """Wait for the event, at most so long. Stopping ends the wait."""
        if not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()

    def _poll_in(self) -> float:
        """Seconds until the next look at everything, whatever notifications say."""
        every = self.settings.effective_poll_seconds
        if not self.is_notified():
            every = min(every, 1.0)
        return self._polled_at + every * self._jitter - loop_time()

    def _due_in(self) -> float:
        return max(self.promotion_timer.next - loop_time(), 0.0)

    def _idle_seconds(self) -> float:
        seconds = max(min(self._poll_in(), self._due_in()), 0.0)
        return min(seconds, BOUND_SECONDS) if self._doubts else seconds

    async def _poll(self) -> None:
        """When it is time, look everywhere: also under steady wakes, so that no due job waits for
        a leader. Each wait is jittered anew, or an idle fleet asks in phase."""
        if self.promotion_timer.take(loop_time()):
            await self._promote()
        if self._poll_in() > 0:
            return
        if self.is_overdue():
            await self._promote()
        self._polled_at, self._jitter = loop_time(), random.uniform(0.8, 1.2)  # noqa: S311
        self.selector.heat(None)
        self.cursor.look(None)

    async def _promote(self, *, notify: bool = False) -> None:
        """Due jobs become READY. Other workers are told where there is no room for them here."""
        queues = await self.session.call(promotion.promote, CALL_SECONDS, PROMOTE_LIMIT)
        if len(queues) == PROMOTE_LIMIT:
            self.promotion_timer.add(0.0, loop_time())
        for queue in set(queues):
            is_served = self.selector.heat(queue)
            self.cursor.look(queue)
            if notify or not is_served:
                self.notify_ready(queue)

    async def _recover(self, seconds: float) -> None:
        """Hand back, unstarted and uncounted, what the lost rounds brought."""
        await self._doubts.resolve(seconds, self._take_back)
        self.cursor.look(None)  # what the lost rounds had locked is to be had again

    def _take_back(self, row: Claim) -> None:
        log.warning("claim_recovered", job=row.id, task=row.task)
        self.intake.take([row], loop_time(), start=False)
