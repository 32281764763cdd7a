"""Writes the outcomes of attempts in batches, in a task that nobody cancels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from math import inf
from uuid import UUID

from jobqueue import logs, notifications
from jobqueue.clock import loop_time
from jobqueue.logs import get_logger
from jobqueue.states import State
from jobqueue.store import finish
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import concerns_data
from jobqueue.store.finish import Ending, Written
from jobqueue.worker.hints import send_hint
from jobqueue.worker.inflight import Fate, InFlight, InFlightJobs
from jobqueue.worker.outages import ErrorPolicy
from jobqueue.worker.outcomes import classify
from jobqueue.worker.outcomes.events import OutcomeEvents
from jobqueue.worker.outcomes.pending import PendingOutcomes, Waiting
from jobqueue.worker.outcomes.progress import Progress
from jobqueue.worker.outcomes.reconcile import as_recorded, decided_state, fate_of, has_landed

WRITE_SECONDS = 5.0
HURRY_SECONDS = 0.1
log = get_logger()


class Completer:
    """The one writer of outcomes, except for atomic handlers, which use the same statement.

    Outcomes are handed over synchronously. All that wait are written in one statement: at once
    when idle, in growing batches under load.
    """

    def __init__(
        self,
        session: Session,
        worker: UUID,
        registry: InFlightJobs,
        outcome_events: OutcomeEvents,
        error_policy: ErrorPolicy,
        *,
        trust_seconds: float,
        on_ready: Callable[[str], object],
        on_soon: Callable[[float], object],
    ) -> None:
        """`on_ready`: a job of this queue may run again at once. `on_soon`: a job may run again in
        this many seconds."""
        self.session, self.worker, self.registry = session, worker, registry
        self.outcome_events, self.error_policy = outcome_events, error_policy
        # From a renewal's sending until it no longer counts.
        self.trust_seconds = trust_seconds
        self.pending = PendingOutcomes()
        self._refused: list[Waiting] = []  # whose late outcome is still to be recorded
        self._progress = Progress(session)
        self._ready: set[str] = set()  # queues to notify other workers of
        self._unlogged: list[tuple[InFlight, Ending, str]] = []  # written, but not logged yet
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()
        self.on_ready, self.on_soon = on_ready, on_soon

    def __len__(self) -> int:
        return len(self.pending) + len(self._refused)

    def put(self, inflight: InFlight, ending: Ending) -> None:
        """Take over one outcome. Never fails, never awaits."""
        self._progress.forget(inflight)
        if inflight.fate is None:
            self.pending.put(inflight, ending)
            self._wake.set()

    def apply_answers(self, batch: Sequence[Waiting], answers: Sequence[Written]) -> None:
        """The statement sent for this batch was answered; what has no answer is written again."""
        for waiting in batch:
            waiting.is_sent = False
        for answer in answers:
            if answered := self.pending.get(answer.token):  # not given up in between
                self._apply_answer(answered, answer)
        if len(self) or self._closed.is_set():
            self._wake.set()

    def mark_unsent(self, batch: Sequence[Waiting]) -> None:
        """The statement was not sent, failed, or is in doubt: write these again."""
        for waiting in batch:
            waiting.is_sent = False
        self._wake.set()

    def recorded(self, inflight: InFlight, ending: Ending, state: str) -> None:
        """An atomic handler has written its own outcome."""
        self._progress.forget(inflight)
        self._conclude(inflight, ending, state)

    def refuse(self, inflight: InFlight, ending: Ending) -> None:
        """An atomic handler's token was refused: its writes rolled back; the history remains."""
        self._refused.append(Waiting(inflight, ending))
        self._wake.set()

    def note_progress(self, inflight: InFlight) -> None:
        """There is progress to store within half a second."""
        if not inflight.ended and inflight.fate is None:
            self._progress.note(inflight)
            self._wake.set()

    def notify_ready(self, queue: str) -> None:
        """Notify the other workers that a job of this queue can be claimed."""
        self._ready.add(queue)
        self._wake.set()

    def close(self) -> None:
        """Let `run` end when nothing waits any more."""
        self._closed.set()
        self._wake.set()

    async def run(self) -> None:
        """The service: pass after pass, until closed and empty."""
        try:
            while len(self) or self._ready or not self._closed.is_set():
                await self._sleep()
                await asyncio.sleep(0)  # a claim that can write it along goes first
                try:
                    await self._pass()
                except Exception as error:
                    await self._pause(self.error_policy.failed(error))
                else:
                    self.error_policy.succeeded()
        finally:
            self._log_written()

    async def _sleep(self) -> None:
        """Sleep until there is something to write; the wake is checked before, never after."""
        moment = -inf if self._refused or self._ready else self.pending.next
        if self._progress:
            moment = min(moment, self._progress.due)
        if moment > loop_time():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if moment == inf else moment):
                    await self._wake.wait()
        self._wake.clear()

    async def _pause(self, seconds: float) -> None:
        """Pause after a failure. New outcomes wait too; only the close cuts this short, since there
        is little time then. An outcome whose lease could not be renewed in time is given up."""
        if self._closed.is_set():
            await asyncio.sleep(min(seconds, HURRY_SECONDS))
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
        self._drop_untrusted()
        if not len(self) and not self._ready:
            self.error_policy.succeeded()  # a failure now has no one to report to

    async def _pass(self) -> None:
        if batch := self.pending.batch():
            await self._write(batch)
        if self._refused:
            await self._record_refused()
        if self._ready:
            await self._notify_ready()
        if self._progress and loop_time() >= self._progress.due:
            await self._progress.store()

    async def _write(self, batch: Sequence[Waiting]) -> None:
        sent = [waiting.ending for waiting in batch]
        for waiting in batch:
            waiting.is_sent = True
        try:
            answers = await self.session.call(finish.finish, WRITE_SECONDS, self.worker, sent)
        except BaseException as error:
            self.mark_unsent(batch)
            if not isinstance(error, Exception) or not concerns_data(error):
                raise
            await self._write_apart(batch, error)
            return
        self.apply_answers(batch, answers)

    def _apply_answer(self, waiting: Waiting, answer: Written) -> None:
        if answer.state is not None:
            self._conclude(waiting.inflight, waiting.ending, answer.state)
        elif answer.newer:
            self.outcome_events.newer(waiting.inflight.claim)
            self._leave(waiting)
        elif answer.busy:
            waiting.put_off()
        else:
            self.pending.remove(answer.token)
            self._refused.append(waiting)

    async def _write_apart(self, batch: Sequence[Waiting], error: Exception) -> None:
        """The database refuses some outcome's data: write each by itself, so the others pass."""
        if len(batch) > 1:
            for waiting in batch:
                if self.pending.get(waiting.inflight.token):
                    await self._write([waiting])
            return
        (waiting,) = batch
        if waiting.ending.outcome is not None and not waiting.replaced:
            waiting.ending = classify.refused_by_database(waiting.ending, error)
            waiting.replaced = True
        elif self.pending.remove(waiting.inflight.token):
            self.outcome_events.unwritable(waiting.inflight.claim, error)
            self.registry.record_fate(waiting.inflight, Fate.UNRECORDED)

    async def _record_refused(self) -> None:
        """No row has these tokens: an earlier copy of the statement landed, or the claim was lost.
        The history shows which."""
        batch = list(self._refused)
        sent = [waiting.ending for waiting in batch]
        history = await self.session.call(finish.late, WRITE_SECONDS, sent)
        for waiting in batch:
            if waiting not in self._refused:  # given up while it was being asked for
                continue
            self._refused.remove(waiting)
            found = history.get(waiting.inflight.token)
            if has_landed(waiting.ending, found):
                state = decided_state(waiting.inflight.claim, waiting.ending, found)
                ending = as_recorded(waiting.inflight, waiting.ending, found)
                self._conclude(waiting.inflight, ending, state)
            else:
                stands = found.outcome if found else None
                self.outcome_events.refused(waiting.inflight, waiting.ending, stands)
                self.registry.record_fate(waiting.inflight, Fate.UNRECORDED)

    async def _notify_ready(self) -> None:
        """Send the hint. If it fails, the other workers' polls find the jobs."""
        queues = sorted(self._ready)
        self._ready.clear()
        await send_hint(self.session, WRITE_SECONDS, notifications.ready(queues))

    def _conclude(self, inflight: InFlight, ending: Ending, state: str) -> None:
        self.pending.remove(inflight.token)
        self.registry.record_fate(inflight, fate_of(ending))
        if state == State.READY:
            self.on_ready(inflight.claim.queue)
        elif state == State.SCHEDULED and (seconds := ending.delay or ending.hold):
            self.on_soon(seconds)
        self._unlogged.append((inflight, ending, state))
        # After the next turn, in which the claimer sends its next claim.
        if len(self._unlogged) == 1:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._log_written)

    def _log_written(self) -> None:
        """Log and signal while the server is busy with the next claim."""
        unlogged, self._unlogged = self._unlogged, []
        with logs.together():
            for inflight, ending, state in unlogged:
                try:
                    self.outcome_events.written(inflight, ending, state)
                except Exception:  # the project's logging failed: the others must still be logged
                    with contextlib.suppress(Exception):
                        log.exception("outcome_log_failed", job=inflight.claim.id)

    def _drop_untrusted(self) -> None:
        """Drop outcomes whose lease was not renewed in time; the leader records the loss."""
        horizon = loop_time() - self.trust_seconds
        for waiting in [*self.pending, *self._refused]:
            if waiting.inflight.trusted_from < horizon:
                self.give_up(waiting)

    def give_up(self, waiting: Waiting) -> None:
        """Leave one claim to its lease, since it could not be written in time."""
        self.outcome_events.given_up(waiting.inflight.claim)
        self._leave(waiting)

    def _leave(self, waiting: Waiting) -> None:
        self.pending.remove(waiting.inflight.token)
        if waiting in self._refused:
            self._refused.remove(waiting)
        self.registry.record_fate(waiting.inflight, Fate.UNRECORDED)

    def give_up_all(self) -> list[int]:
        """The shutdown's time is up: leave unwritten outcomes to their leases; return the jobs."""
        left = [*self.pending, *self._refused]
        for waiting in left:
            self.give_up(waiting)
        return [waiting.inflight.claim.id for waiting in left]
