"""Claims as many jobs as there are free slots, one queue at a time, and starts each at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from jobqueue.clock import loop_time
from jobqueue.conf import SECOND_CLAIM_SLOTS, Settings
from jobqueue.logs import get_logger
from jobqueue.store import queue_names
from jobqueue.store.claims import Claim
from jobqueue.store.connections import Session
from jobqueue.worker.claiming.attempt_budget import AttemptBudget
from jobqueue.worker.claiming.claim_round import CALL_SECONDS, ClaimRound, Intake
from jobqueue.worker.claiming.lost_claims import LostClaims
from jobqueue.worker.claiming.parked_jobs import ParkedJobs
from jobqueue.worker.claiming.promotions import Promotions
from jobqueue.worker.claiming.queue_pauses import QueuePauses
from jobqueue.worker.claiming.queue_selector import QueueSelector
from jobqueue.worker.claiming.scan_cursor import ScanCursor
from jobqueue.worker.claiming.suspects import Suspects
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.outages import ErrorPolicy
from jobqueue.worker.outcomes.completer import Completer

# How long to wait for a write that frees more slots than are free now.
MERGE_SECONDS = 0.01
# The longest wait, in case an event was missed or a round's answer was lost.
BOUND_SECONDS = 1.0
RECOVER_SECONDS = 1.0
log = get_logger()


def most_successes(concurrency: int) -> int:
    """Return how many successes one round writes at most, to claim into their slots; free slots
    come on top."""
    # From there on two connections claim in turn, so that server and process work at the same
    # time. With smaller rounds that would cost more than it gains.
    return concurrency if concurrency < SECOND_CLAIM_SLOTS else (concurrency + 1) // 2


class Claimer:
    """The only way in for jobs. There is no local queue: a claimed job starts at once."""

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
        max_attempts: int | None,
        is_notified: Callable[[], bool],
        notify_ready: Callable[[str], None],
        is_overdue: Callable[[], bool],
        on_spent: Callable[[], None],
    ) -> None:
        """`is_notified`: whether notifications arrive. `notify_ready` wakes the other workers.
        `is_overdue`: whether scheduled jobs are due that no leader has promoted. `on_spent`: as
        many attempts as may begin (`max_attempts`) have begun and ended."""
        self.session, self.settings = sessions[0], settings
        self.registry = registry
        self.error_policies = error_policies
        self.outcomes: Completer = executor.completer
        self.is_notified, self.notify_ready, self.is_overdue = is_notified, notify_ready, is_overdue
        self.on_spent = on_spent
        self.budget = None if max_attempts is None else AttemptBudget(max_attempts, registry)
        self.selector, self.cursor = QueueSelector(queues), ScanCursor()
        self._wake, self._second_wanted = asyncio.Event(), asyncio.Event()
        self._stopped = asyncio.Event()
        self._lost_claims = LostClaims(self.session, worker)
        self._polled_at, self._jitter = float("-inf"), 1.0
        self._pauses = QueuePauses(self.selector, self.cursor, self._wake.set)
        self._backlogged: set[str] = set()  # queues whose last round was full
        self.intake = Intake(
            worker=worker,
            settings=settings,
            registry=registry,
            executor=executor,
            lost_claims=self._lost_claims,
            cursor=self.cursor,
            stopped=self._stopped,
            most_successes=most_successes(settings.concurrency),
            budget=self.budget,
        )
        self.first_round = ClaimRound(sessions[0], self.intake)
        self.second_round = ClaimRound(sessions[1], self.intake)
        self.suspects = Suspects(self.first_round, list(queues))
        parked = ParkedJobs(
            executor.handler_threads,
            serves=self.selector.serves,
            taken=lambda: self.intake.parked_taken,
            on_known=self._wake.set,
        )
        self.promotions = Promotions(
            self._call,
            parked,
            on_ready=self._on_promoted,
            notify_ready=lambda queue: self.notify_ready(queue),
        )

    def wake(self, queue: str | None = None, priority: int | None = None) -> None:
        """Jobs of this queue (None: of any) may be ready; with a priority they are new."""
        if queue is None:
            self._mark_all()
        elif not self.selector.mark_ready(queue):
            return
        self.cursor.request_full_scan(queue, priority)
        self.suspects.wake()
        self._pauses.note_wake(queue)
        self._wake.set()

    def _mark_all(self) -> None:
        """Any queue may have ready jobs. Where there are many, the next poll asks which have."""
        if self.selector.is_many:
            self._polled_at = float("-inf")
        else:
            self.selector.mark_ready(None)

    def poll(self) -> None:
        """Poll every queue now: scheduled jobs are overdue."""
        self._polled_at = float("-inf")
        self._wake.set()

    def promote_in(self, seconds: float) -> None:
        """A job that this worker postponed falls due then; the leader may not know of it."""
        if self.promotions.timer.add(seconds, loop_time()):
            self._wake.set()
            self.registry.freed.set()

    def stop(self) -> None:
        """Send no further claim; what the round in flight brings is returned unstarted."""
        self._stopped.set()
        self._wake.set()
        self._second_wanted.set()
        self.registry.freed.set()

    async def run(self) -> None:
        """The service: claims while there is work and room, otherwise waits for both."""
        self._mark_all()
        try:
            async with asyncio.TaskGroup() as connections:
                connections.create_task(
                    self._serve(self._step, self.error_policies[0]), name="claim"
                )
                if self.intake.most_successes < self.registry.concurrency:
                    second = self._serve(self._step_of_second, self.error_policies[1])
                    connections.create_task(second, name="claim 2")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _serve(self, step: Callable[[], Awaitable[bool]], error_policy: ErrorPolicy) -> None:
        while not self._stopped.is_set():
            try:
                is_well = await step()
            except Exception as error:
                delay = error_policy.failed(error)
                self._mark_all()
                self.cursor.request_full_scan(None)  # the failed round may have been one
                self._wake.set()  # the other connection, if it is idle
                # A wake does not end this wait, or a dead server would be asked again and again.
                await self._wait(self._stopped, delay)
            else:
                if is_well:
                    error_policy.succeeded()

    async def recover_lost(self) -> None:
        """At the stop, once the service has ended: recover the last lost rounds."""
        with contextlib.suppress(Exception):
            await self._recover(RECOVER_SECONDS)

    async def _step(self) -> bool:
        if self._lost_claims.are_due(loop_time()):
            await self._recover(CALL_SECONDS)
        room = self.intake.room
        if room <= 0:
            self.registry.freed.clear()
            if self.budget is not None and self.budget.is_spent:
                self.on_spent()
            if self.promotions.timer.pop_due(loop_time()):
                await self.promotions.promote_due(notify=True)
            await self._wait(self.registry.freed, min(BOUND_SECONDS, self._seconds_to_promotion()))
            return True
        # There will soon be more room: one large round instead of two.
        if room < self.outcomes.pending.sent_count:
            self.registry.freed.clear()
            await self._wait(self.registry.freed, MERGE_SECONDS)
        self._wake.clear()  # before the statement is sent, so that a wake during the round is kept
        await self._poll()
        await self.promotions.promote_parked(self.intake.room)
        queue = self.selector.next()
        if queue is not None:
            sent = loop_time()
            if not await self._claim(self.first_round, queue):
                await self._pauses.after_partial(queue, sent, partial(self._wait, self._stopped))
        if self.suspects.due <= loop_time():
            await self.suspects.claim()
        elif queue is None:
            await self._wait(self._wake, self._idle_seconds())
        return True

    async def _claim(self, claim_round: ClaimRound, queue: str) -> bool:
        """Do one round; return whether to claim from this queue again at once. After a full round
        both connections do, if there is room."""
        found = await claim_round.claim(queue)
        if found:
            self._backlogged.add(queue)
            self._second_wanted.set()
        elif found is False:
            self._backlogged.discard(queue)
            return False
        self.selector.mark_ready(queue)
        return True

    async def _step_of_second(self) -> bool:
        """One step on the second connection, which claims from backlogged queues only. Returns
        whether it showed that the connection works."""
        queue = None
        if not self._lost_claims and self.intake.room > self.intake.most_successes // 2:
            queue = self.selector.choose(self._backlogged)
        if queue is None:
            self._second_wanted.clear()
            await self._wait(self._second_wanted)
            return False
        if not await self._claim(self.second_round, queue):
            self.selector.mark_ready(queue)  # the first connection finds out whether it is empty
        self._wake.set()  # the first one may be idle after a round that was not full
        return True

    async def _wait(self, event: asyncio.Event, seconds: float | None = None) -> None:
        """Wait for the event, at most this long. A stop ends the wait."""
        if not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()

    def _seconds_to_poll(self) -> float:
        """Seconds until the next poll, whether or not notifications arrive."""
        every = self.settings.effective_poll_seconds
        if not self.is_notified():
            every = min(every, 1.0)
        return self._polled_at + every * self._jitter - loop_time()

    def _seconds_to_promotion(self) -> float:
        return max(self.promotions.timer.next - loop_time(), 0.0)

    def _idle_seconds(self) -> float:
        due = min(self.promotions.next, self.suspects.due)
        seconds = max(min(self._seconds_to_poll(), due - loop_time()), 0.0)
        return min(seconds, BOUND_SECONDS) if self._lost_claims else seconds

    async def _poll(self) -> None:
        """Poll every queue when it is time, even under steady wakes, so that no due job waits for
        a leader. Each wait gets a new jitter, or an idle fleet would poll in phase."""
        if self.promotions.timer.pop_due(loop_time()):
            await self.promotions.promote_due()
        if self._seconds_to_poll() > 0:
            return
        if self.is_overdue():
            await self.promotions.promote_due()
        if self.selector.is_many:
            names = await self.session.call(queue_names.ready_queues, CALL_SECONDS)
            self.selector.discover(names)
        else:
            self.selector.mark_ready(None)
        self._pauses.forget_old()
        self._polled_at, self._jitter = loop_time(), random.uniform(0.8, 1.2)  # noqa: S311
        self.suspects.wake()
        self.cursor.request_full_scan(None)

    def _on_promoted(self, queue: str) -> bool:
        self.cursor.request_full_scan(queue)
        self.suspects.wake()
        return self.selector.mark_ready(queue)

    async def _call(self, verb: Callable[..., Any], *args: Any) -> Any:
        return await self.session.call(verb, CALL_SECONDS, *args)

    async def _recover(self, seconds: float) -> None:
        """Return, unstarted and uncounted, what the lost rounds claimed."""
        await self._lost_claims.resolve(seconds, self._return_unstarted)
        self.cursor.request_full_scan(None)  # their locked rows can be claimed again

    def _return_unstarted(self, row: Claim) -> None:
        log.warning("claim_recovered", job=row.id, task=row.task)
        self.intake.accept([row], loop_time(), start=False)
