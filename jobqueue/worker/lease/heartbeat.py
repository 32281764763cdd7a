"""The heartbeat: renews every lease, learns of cancels and losses, reports this worker alive."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import psycopg

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.states import Wake
from jobqueue.store import events, heartbeat, workers
from jobqueue.store.connections import Session
from jobqueue.store.notify import prove
from jobqueue.store.workers import Identity
from jobqueue.worker.bulk_orders import BulkOrders
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import InFlight, InFlightJobs, Stop
from jobqueue.worker.leadership.election import Leader
from jobqueue.worker.leadership.leaderless import LeaderWatch
from jobqueue.worker.notifications.listener import Listener
from jobqueue.worker.outages import ErrorPolicy
from jobqueue.worker.process.liveness import DeadWorkerDetector
from jobqueue.worker.row_batches import concerns_row

# The least time between two beats, however many cancels are requested.
LEAST_SECONDS = 0.03
# While another session locks a row whose lease is nearly over, the beat is repeated this often, or
# the leader might reclaim the job first.
BUSY_SECONDS = 0.1
NOTES_KEPT = 100
log = get_logger()


class Heartbeat:
    """One statement per beat, within one budget. A failed beat is repeated after a quarter of the
    interval."""

    def __init__(
        self,
        session: Session,
        identity: Identity,
        settings: Settings,
        registry: InFlightJobs,
        executor: Executor,
        error_policy: ErrorPolicy,
        *,
        listener: Listener | None,
        leader: Leader | None,
        bulk_orders: BulkOrders,
        phase: Callable[[], str],
        idle_reason: Callable[[], str],
        signals_dropped: Callable[[], int],
        on_beat: Callable[[], None],
        on_overdue: Callable[[], None],
        on_certified_dead: Callable[[str], None],
    ) -> None:
        self.session, self.identity, self.settings = session, identity, settings
        self.registry, self.executor, self.error_policy = registry, executor, error_policy
        self.listener, self.leader, self.bulk_orders = listener, leader, bulk_orders
        self.phase, self.on_beat = phase, on_beat
        self.idle_reason, self.signals_dropped = idle_reason, signals_dropped
        self.idle = ""  # why nothing is claimed, as of the last beat
        self.on_overdue, self.on_certified_dead = on_overdue, on_certified_dead
        self.dead_workers = DeadWorkerDetector(session, identity.id, settings)
        self.notes: deque[events.Note] = deque(maxlen=NOTES_KEPT)  # written after a good beat
        self.leader_watch = LeaderWatch(settings.leader_lease_seconds)
        self.good_at = time.monotonic()
        self.overdue = True  # whether due jobs were not promoted; until the first beat, assumed
        self._silent = False
        self._refused: set[UUID] = set()  # tokens whose rows cannot be renewed
        self._busy_since: dict[UUID, float] = {}  # when their leases were last renewed
        self._hint = asyncio.Event()

    def request_beat(self) -> None:
        """Beat at once: a cancel is requested, or there is something to show."""
        self._hint.set()

    async def run(self) -> None:
        """The service: runs through the whole shutdown, until it is cancelled."""
        loop, every = asyncio.get_running_loop(), self.settings.heartbeat_seconds
        while True:
            start = loop.time()
            self._hint.clear()
            wait = every / 4
            try:
                self.on_beat()  # not only after a good beat: it shows that the loop is alive
                await self.beat()
                await self._after_beat(start + every)
            except Exception as error:
                self.error_policy.failed(error)
            else:
                self.error_policy.succeeded()
                wait = start + (BUSY_SECONDS if self._must_hurry(start) else every) - loop.time()
            await asyncio.sleep(max(start + LEAST_SECONDS - loop.time(), 0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0)):
                    await self._hint.wait()

    async def beat(self) -> None:
        """Renew, and act on the answer; the whole of it within the budget."""
        loop = asyncio.get_running_loop()
        renewable, sent = self.registry.renewable(), loop.time()
        self.idle = self.idle_reason()
        renewed = [inflight for inflight in renewable if inflight.token not in self._refused]
        try:
            answer = await self._send(renewed, sent, self.settings.beat_budget_seconds)
        except psycopg.Error as error:
            if not concerns_row(error):
                raise
            renewed, answer = await self._send_apart(renewed, sent)
        self.good_at = time.monotonic()
        self._apply(renewed, answer, sent)
        self._silent = answer.silent
        await self._send_proof(sent + self.settings.beat_budget_seconds)
        if answer.died_at is not None:
            for inflight in renewed:  # the leader takes them back, whatever their leases say
                self._lost(inflight)
            self.on_certified_dead("somebody certified this process as dead")
        elif not answer.registered:
            left = sent + self.settings.beat_budget_seconds - loop.time()
            await self.session.call(workers.register, left, self.identity)

    async def _send(
        self, renewed: Sequence[InFlight], sent: float, seconds: float
    ) -> heartbeat.Beat:
        beat: heartbeat.Beat = await self.session.call(
            heartbeat.beat,
            seconds,
            self.identity.id,
            [
                heartbeat.HeldLease(
                    inflight.claim.id, inflight.token, self._not_ending(inflight, sent)
                )
                for inflight in renewed
            ],
            lease=self.settings.lease_seconds,
            leader_lease=self.settings.leader_lease_seconds,
            phase=self.phase(),
            idle=self.idle,
            dropped=self.signals_dropped(),
            wake=self.listener.state if self.listener else Wake.OFF,
            silence=self.dead_workers.silence_seconds,
        )
        return beat

    async def _send_apart(
        self, renewed: Sequence[InFlight], sent: float
    ) -> tuple[list[InFlight], heartbeat.Beat]:
        """The database refuses to renew some row: each is renewed by itself. A refused one's lease
        cannot be kept, so its handler is stopped in time; the others run on."""
        end = sent + self.settings.beat_budget_seconds
        answer, kept = await self._send([], sent, self.settings.beat_budget_seconds), []
        for inflight in renewed:
            try:
                one = await self._send([inflight], sent, max(end - loop_time(), 0.0))
            except psycopg.Error as error:
                if not concerns_row(error):
                    raise
                self._refused.add(inflight.token)
                job, why = inflight.claim.id, repr(error)
                log.error("row_set_aside", step="renew", job=job, error=why)  # noqa: TRY400
                continue
            kept.append(inflight)
            answer = replace(
                answer,
                renewed=answer.renewed | one.renewed,
                busy=answer.busy | one.busy,
                cancelled=answer.cancelled | one.cancelled,
            )
        return kept, answer

    async def _send_proof(self, end: float) -> None:
        """Send what the listener must receive, or it will consider its connection dead."""
        if self.listener is None or not (proof := self.listener.next_proof()):
            return
        seconds = max(end - loop_time(), 0.0)
        try:
            await self.session.call(prove, seconds, self.listener.channel, proof)
        except Exception as error:
            log.warning("notification_failed", kinds=["proof"], error=repr(error))

    async def _after_beat(self, next_beat: float) -> None:
        """Use the beat's connection for other work; it must not delay the next beat."""
        while self.notes:
            notes = list(self.notes)
            actor = f"worker {self.identity.id}"
            budget = self.settings.beat_budget_seconds
            await self.session.call(events.note, budget, notes, actor)
            for note in notes:
                self.notes.remove(note)
        await self.bulk_orders.check(self.session, self.settings.beat_budget_seconds)
        if self._silent:
            await self.dead_workers.detect(next_beat - loop_time())

    def _must_hurry(self, now: float) -> bool:
        """Whether the lease of a locked row is nearly over or has lapsed."""
        near = self.settings.lease_seconds - 2 * self.settings.heartbeat_seconds
        return any(now - since > near for since in self._busy_since.values())

    def _not_ending(self, inflight: InFlight, now: float) -> float | None:
        waited = now - inflight.stop_requested_at
        asked = inflight.stop_reason is not None and inflight.needs_lease
        ignoring = asked and waited > self.settings.cancel_seconds
        return waited if ignoring else None

    def _apply(self, held: list[InFlight], answer: heartbeat.Beat, sent: float) -> None:
        self._busy_since = {
            inflight.token: self._busy_since.get(inflight.token, inflight.trusted_from)
            for inflight in held
            if inflight.token in answer.busy
        }
        for inflight in held:
            # A row that another session has locked is still ours: nobody can claim it.
            if inflight.token in answer.renewed or inflight.token in answer.busy:
                inflight.mark_renewed(sent)
            elif inflight.fate is None:
                self._lost(inflight)
        for token in answer.cancelled:
            cancelled = self.registry.get(token)
            if cancelled is not None:
                self.executor.stop(cancelled, Stop.CANCEL)
        self.overdue = answer.overdue
        if answer.overdue:
            self.on_overdue()
        self.leader_watch.observe(vacant=answer.leader_vacant)
        if self.leader is not None:
            self.leader.on_vacant() if answer.leader_vacant else self.leader.on_occupied()

    def _lost(self, inflight: InFlight) -> None:
        """No row has this token any more. An outcome being written looks the same, so only a
        handler that is still running is stopped."""
        if inflight.ended or inflight.released or inflight.recording is not None:
            return
        inflight.mark_lost()
        log.warning("lease_lost", job=inflight.claim.id, task=inflight.claim.task)
        self.executor.stop(inflight, Stop.LEASE)
