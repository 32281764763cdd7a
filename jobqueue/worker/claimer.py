"""Claims as many jobs as there are free slots, one queue at a time, and starts each at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog
from psycopg import AsyncConnection

from jobqueue.conf import Settings
from jobqueue.store import claims, exchange, promotion
from jobqueue.store.claims import Backend, Claim
from jobqueue.store.connections import Session
from jobqueue.store.failures import concerns_data
from jobqueue.worker.doubts import Doubts
from jobqueue.worker.dues import Dues
from jobqueue.worker.executor import Executor
from jobqueue.worker.finisher import Finisher
from jobqueue.worker.held import Registry
from jobqueue.worker.marks import Marks
from jobqueue.worker.outbox import Waiting
from jobqueue.worker.tokens import new_tokens
from jobqueue.worker.turns import Turns
from jobqueue.worker.weather import Patience

CALL_SECONDS = 5.0
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
log = structlog.get_logger("jobqueue")


class Claimer:
    """The only intake. No local queue: what is claimed is started before anything is awaited."""

    def __init__(
        self,
        session: Session,
        worker: UUID,
        queues: Mapping[str, int],
        settings: Settings,
        registry: Registry,
        executor: Executor,
        patience: Patience,
    ) -> None:
        self.session, self.worker, self.settings = session, worker, settings
        self.registry, self.executor, self.patience = registry, executor, patience
        self.outcomes: Finisher = executor.finisher
        self.is_told: Callable[[], bool] = lambda: True  # whether notifications arrive
        self.tell_ready: Callable[[str], None] = lambda queue: None  # other workers
        self.is_overdue: Callable[[], bool] = lambda: True  # whether scheduled jobs are due
        self.turns, self.marks, self.dues = Turns(queues), Marks(), Dues()
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._backend: Backend | None = None
        self._doubts = Doubts(session, worker)
        self._polled_at, self._jitter = float("-inf"), 1.0
        self._woken_at = float("-inf")
        session.prepare = self._meet

    def wake(self, queue: str | None = None, priority: int | None = None) -> None:
        """Jobs of this queue (None: of any) may be ready; a priority says that they are new."""
        if self.turns.heat(queue):
            self.marks.look(queue, priority)
            self._woken_at = _now()
            self._wake.set()

    def poll(self) -> None:
        """Look everywhere at once: scheduled jobs should have become ready by now."""
        self._polled_at = float("-inf")
        self._wake.set()

    def promote_in(self, seconds: float) -> None:
        """A job that was put off here falls due then; the leader may not know."""
        if self.dues.add(seconds, _now()):
            self._wake.set()
            self.registry.freed.set()

    def stop(self) -> None:
        """No further claim is sent; the round in flight is handed back unstarted."""
        self._stopped.set()
        self._wake.set()
        self.registry.freed.set()

    async def run(self) -> None:
        """The service: rounds while there is work and room, waiting for either otherwise."""
        self.turns.heat(None)
        while not self._stopped.is_set():
            try:
                await self._step()
            except Exception as error:
                delay = self.patience.failed(error)
                self.turns.heat(None)
                self.marks.look(None)  # the round may have been the look for something urgent
                # A wake does not cut this short: it would ask a dead server again and again.
                await self._wait(self._stopped, delay)
            else:
                self.patience.succeeded()

    async def settle(self) -> None:
        """At the stop, once the service has ended: the last lost rounds are looked for."""
        with contextlib.suppress(Exception):
            await self._recover(SETTLE_SECONDS)

    async def _meet(self, connection: AsyncConnection[Any]) -> None:
        """Remember who serves a fresh connection, in case it is cut."""
        self._backend = await claims.backend(connection)

    async def _step(self) -> None:
        if self._doubts.are_due(_now()):
            await self._recover(CALL_SECONDS)
        outbox = self.outcomes.outbox
        room = self.registry.free - self._doubts.slots + outbox.lendable
        if room <= 0 or self.executor.receivers.is_behind:
            self.registry.freed.clear()
            if self.dues.take(_now()):
                await self._promote(tell=True)
            await self._wait(self.registry.freed, min(BOUND_SECONDS, self._due_in()))
            return
        if room < outbox.under_way:  # soon there is more: one large round instead of two
            self.registry.freed.clear()
            await self._wait(self.registry.freed, MERGE_SECONDS)
        self._wake.clear()  # before the statement is sent: a wake during the round survives it
        await self._poll()
        queue = self.turns.next()
        if queue is None:
            await self._wait(self._wake, self._idle_seconds())
        else:
            sent = _now()
            if await self._round(queue):
                self.turns.heat(queue)
            else:
                await self._fell_short(queue, sent)

    async def _fell_short(self, queue: str, sent: float) -> None:
        """The queue is empty, as far as this round could see."""
        await self._wait(self._stopped, PAUSE_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311
        if sent < self._woken_at + THIN_SECONDS:  # a later job may have spared its own wake
            self.turns.heat(queue)
        elif (rest := self.marks.rest(queue, sent)) > 0:  # something may stand before the mark
            asyncio.get_running_loop().call_later(rest, self._look_again, queue)

    def _look_again(self, queue: str) -> None:
        if self.turns.heat(queue):
            self._wake.set()

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for the event, at most so long. Stopping ends the wait."""
        if not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()

    def _poll_in(self) -> float:
        """Seconds until the next look at everything, whatever notifications say."""
        every = self.settings.effective_poll_seconds
        if not self.is_told():
            every = min(every, 1.0)
        return self._polled_at + every * self._jitter - _now()

    def _due_in(self) -> float:
        return max(self.dues.next - _now(), 0.0)

    def _idle_seconds(self) -> float:
        seconds = max(min(self._poll_in(), self._due_in()), 0.0)
        return min(seconds, BOUND_SECONDS) if self._doubts else seconds

    async def _poll(self) -> None:
        """When it is time, look everywhere: also under steady wakes, so that no due job waits for
        a leader. Each wait is jittered anew, or an idle fleet asks in phase."""
        if self.dues.take(_now()):
            await self._promote()
        if self._poll_in() > 0:
            return
        if self.is_overdue():
            await self._promote()
        self._polled_at, self._jitter = _now(), random.uniform(0.8, 1.2)  # noqa: S311
        self.turns.heat(None)
        self.marks.look(None)

    async def _promote(self, *, tell: bool = False) -> None:
        """Due jobs become READY. Other workers are told where there is no room for them here."""
        queues = await self.session.call(promotion.promote, CALL_SECONDS, PROMOTE_LIMIT)
        if len(queues) == PROMOTE_LIMIT:
            self.dues.add(0.0, _now())
        for queue in set(queues):
            is_served = self.turns.heat(queue)
            self.marks.look(queue)
            if tell or not is_served:
                self.tell_ready(queue)

    async def _round(self, queue: str) -> bool:
        """One claim, which also writes what has ended; whether it found all it asked for."""
        await self.session.open(CALL_SECONDS)
        if self._stopped.is_set():
            return False
        ended = self.outcomes.outbox.lend()
        try:
            rows, asked, sent = await self._exchange(queue, ended)
        except BaseException as error:
            self.outcomes.not_heard(ended)
            if not ended or not isinstance(error, Exception) or not concerns_data(error):
                raise
            self.marks.look(queue)
            return True  # it may be one of the outcomes: the next round goes without them
        late = _now() - sent > self.settings.lease_seconds - self.settings.lease_margin_seconds
        self._take(rows, sent, start=not (late or self._stopped.is_set()))
        return len(rows) >= asked

    async def _exchange(
        self, queue: str, ended: Sequence[Waiting]
    ) -> tuple[Sequence[Claim], int, float]:
        """Return the rows, how many there could be at most, and when they were asked for."""
        asked, sent = self.registry.free - self._doubts.slots + len(ended), _now()
        tokens, lease = new_tokens(max(asked, 0)), self.settings.lease_seconds
        after = self.marks.begin(queue, sent)
        call = self.session.call
        claim = (queue, self.worker, tokens, lease, after)
        try:
            if ended:
                endings = [waiting.ending for waiting in ended]
                answers, rows = await call(exchange.exchange, CALL_SECONDS, *claim, endings)
                self.outcomes.heard(ended, answers)
                asked -= len(ended) - len(answers)  # the slots of the others stay taken
            else:
                rows = await call(claims.claim, CALL_SECONDS, *claim)
        except BaseException:
            if self.session.connection is None:  # cut: nobody knows whether it was done
                self._doubts.add(self._backend, tokens, until=sent + lease)
            raise
        self.marks.seen(queue, after, rows, _now())
        return rows, asked, sent

    def _take(self, rows: Sequence[Claim], sent: float, *, start: bool) -> None:
        """All are registered before the first handler makes its first step."""
        for held in [self.registry.add(row, sent) for row in rows]:
            row = held.claim
            log.debug("job_claimed", job=row.id, task=row.task, queue=row.queue)
            if start:
                self.executor.start(held)
            else:
                self.executor.give_back(held)

    async def _recover(self, seconds: float) -> None:
        """Hand back, unstarted and uncounted, what the lost rounds brought."""
        await self._doubts.resolve(seconds, self._take_back)

    def _take_back(self, row: Claim) -> None:
        log.warning("claim_recovered", job=row.id, task=row.task)
        self._take([row], _now(), start=False)


def _now() -> float:
    return asyncio.get_running_loop().time()
