"""Writes how attempts ended, in groups, by a task that nobody cancels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from jobqueue import logs
from jobqueue.states import State
from jobqueue.store import endings
from jobqueue.store.connections import Session, concerns_data
from jobqueue.store.endings import Ending, Stands, Written
from jobqueue.worker import outcomes
from jobqueue.worker.held import Fate, Held, Registry
from jobqueue.worker.reports import Reports
from jobqueue.worker.weather import Patience

WRITE_SECONDS = 5.0
BATCH, BATCH_BYTES = 500, 4 * 1024 * 1024
BUSY_SECONDS, BUSY_MAX_SECONDS = 0.02, 1.0
PROGRESS_SECONDS = 0.5
HURRY_SECONDS = 0.1
log = structlog.get_logger("jobqueue")


@dataclass(slots=True)
class Waiting:
    """One outcome on its way to the database."""

    held: Held
    ending: Ending
    not_before: float = 0.0
    busy: float = BUSY_SECONDS
    replaced: bool = False  # the database refused the outcome itself; this one says so
    under_way: bool = False  # a statement that writes it has been sent
    lent: bool = False  # once: what fails beside a claim is written apart


class Finisher:
    """The one writer of outcomes but for atomic handlers, who use the same statement.

    Outcomes are handed over synchronously; all that wait are written in one statement, at once
    when idle, in growing batches under load.
    """

    def __init__(
        self,
        session: Session,
        worker: UUID,
        registry: Registry,
        reports: Reports,
        patience: Patience,
        *,
        trust_seconds: float,
    ) -> None:
        self.session, self.worker, self.registry = session, worker, registry
        self.reports, self.patience = reports, patience
        self.trust_seconds = trust_seconds  # from a renewal's sending to the end of its trust
        self._waiting: dict[UUID, Waiting] = {}
        self._refused: list[Waiting] = []  # whose late outcome is still to be told
        self._news: dict[UUID, Held] = {}  # whose progress is not stored yet
        self._next_news = 0.0
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()
        self.on_ready: Callable[[str], object] = lambda queue: None  # a job may run again at once

    def __len__(self) -> int:
        return len(self._waiting) + len(self._refused)

    def put(self, held: Held, ending: Ending) -> None:
        """Take over one outcome. Never fails, never awaits."""
        self._news.pop(held.token, None)
        if held.fate is None:
            self._waiting[held.token] = Waiting(held, ending)
            self._wake.set()

    @property
    def under_way(self) -> int:
        """How many outcomes are being written at this moment."""
        return sum(waiting.under_way for waiting in self._waiting.values())

    @property
    def lendable(self) -> int:
        """How many `lend` would return."""
        return sum(map(_is_lendable, self._batch()))

    def lend(self) -> list[Waiting]:
        """Hand over what a claim can write along, to take its slots at the same time. It comes
        back by `heard` or `not_heard`."""
        batch = [waiting for waiting in self._batch() if _is_lendable(waiting)]
        for waiting in batch:
            waiting.under_way = waiting.lent = True
        return batch

    def heard(self, batch: Sequence[Waiting], answers: Sequence[Written]) -> None:
        """The statement that was sent for this batch has been answered."""
        for waiting in batch:
            waiting.under_way = False
        with logs.together():
            for answer in answers:
                if answered := self._waiting.get(answer.token):  # not given up meanwhile
                    self._hear(answered, answer)
        if self._waiting or self._refused:
            self._wake.set()

    def not_heard(self, batch: Sequence[Waiting]) -> None:
        """It was not sent, or failed, or nobody knows: to be written again."""
        for waiting in batch:
            waiting.under_way = False
        self._wake.set()

    def recorded(self, held: Held, ending: Ending, state: str) -> None:
        """An atomic handler has written its own outcome."""
        self._news.pop(held.token, None)
        self._settle(held, ending, state)

    def refuse(self, held: Held, ending: Ending) -> None:
        """An atomic handler met the fence: its writes are rolled back, only the trace is left."""
        self._refused.append(Waiting(held, ending))
        self._wake.set()

    def note_progress(self, held: Held) -> None:
        """There is progress to store within half a second."""
        if not held.ended and held.fate is None:
            self._news[held.token] = held
            self._wake.set()

    def close(self) -> None:
        """Let `run` end when nothing waits any more."""
        self._closed.set()
        self._wake.set()

    async def run(self) -> None:
        """The service: one pass after the other until closed and empty."""
        while len(self) or not self._closed.is_set():
            await self._sleep()
            try:
                await self._pass()
            except Exception as error:
                await self._pause(self.patience.failed(error))
            else:
                self.patience.succeeded()

    async def _sleep(self) -> None:
        """Until there is something to write; a set wake is looked at before, never after."""
        now = _now()
        moments = [w.not_before for w in self._waiting.values() if not w.under_way]
        moments += [now] if self._refused else []
        moments += [self._next_news] if self._news else []
        delay = min(moments) - now if moments else None
        if delay is None or delay > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
        self._wake.clear()

    async def _pause(self, seconds: float) -> None:
        """After a failure. What arrives meanwhile waits too; only the close cuts this short, since
        then there is little time left. A lease that could not be renewed meanwhile is given up."""
        if self._closed.is_set():
            await asyncio.sleep(min(seconds, HURRY_SECONDS))
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
        self._drop_untrusted()
        if not len(self):
            self.patience.succeeded()  # there is nothing left to fail with

    async def _pass(self) -> None:
        if batch := self._batch():
            await self._write(batch)
        if self._refused:
            await self._tell_refused()
        if self._news and _now() >= self._next_news:
            await self._store_progress()

    def _batch(self) -> list[Waiting]:
        now, size = _now(), 0
        batch: list[Waiting] = []
        for waiting in self._waiting.values():
            if waiting.not_before > now or waiting.under_way:
                continue
            size += len(waiting.ending.result or "") + len(waiting.ending.traceback)
            if batch and (len(batch) >= BATCH or size > BATCH_BYTES):
                break
            batch.append(waiting)
        return batch

    async def _write(self, batch: Sequence[Waiting]) -> None:
        sent = [waiting.ending for waiting in batch]
        for waiting in batch:
            waiting.under_way = True
        try:
            answers = await self.session.call(endings.finish, WRITE_SECONDS, self.worker, sent)
        except BaseException as error:
            self.not_heard(batch)
            if not isinstance(error, Exception) or not concerns_data(error):
                raise
            await self._write_apart(batch, error)
            return
        self.heard(batch, answers)

    def _hear(self, waiting: Waiting, answer: Written) -> None:
        if answer.state is not None:
            self._settle(waiting.held, waiting.ending, answer.state)
        elif answer.busy:
            waiting.not_before = _now() + waiting.busy
            waiting.busy = min(2 * waiting.busy, BUSY_MAX_SECONDS)
        else:
            del self._waiting[answer.token]
            self._refused.append(waiting)

    async def _write_apart(self, batch: Sequence[Waiting], error: Exception) -> None:
        """The database refuses some outcome's data: it must not sink its neighbours."""
        if len(batch) > 1:
            for waiting in batch:
                if waiting.held.token in self._waiting:
                    await self._write([waiting])
            return
        (waiting,) = batch
        if waiting.ending.outcome is not None and not waiting.replaced:
            waiting.ending = outcomes.refused_by_database(waiting.ending, error)
            waiting.replaced = True
        elif self._waiting.pop(waiting.held.token, None):
            self.reports.unwritable(waiting.held.claim, error)
            self.registry.settle(waiting.held, Fate.UNRECORDED)

    async def _tell_refused(self) -> None:
        """No row bears these tokens. Either an earlier copy of the statement landed, or the claim
        was taken away; the history knows."""
        batch = list(self._refused)
        sent = [waiting.ending for waiting in batch]
        history = await self.session.call(endings.late, WRITE_SECONDS, sent)
        for waiting in batch:
            if waiting not in self._refused:  # given up while it was being asked for
                continue
            self._refused.remove(waiting)
            found = history.get(waiting.held.token)
            if _has_landed(waiting.ending, found):
                state = (found.state if found else None) or _expected_state(waiting)
                self._settle(waiting.held, _as_recorded(waiting, found), state)
            else:
                stands = found.outcome if found else None
                self.reports.refused(waiting.held, waiting.ending, stands)
                self.registry.settle(waiting.held, Fate.UNRECORDED)

    def _settle(self, held: Held, ending: Ending, state: str) -> None:
        self._waiting.pop(held.token, None)
        self.registry.settle(held, _fate(ending))
        if state == State.READY:
            self.on_ready(held.claim.queue)
        self.reports.written(held, ending, state)

    def _drop_untrusted(self) -> None:
        """A lease that was not renewed in time lapses by itself; the leader records the loss."""
        horizon = _now() - self.trust_seconds
        for waiting in [*self._waiting.values(), *self._refused]:
            if waiting.held.trusted_from < horizon:
                self.give_up(waiting)

    def give_up(self, waiting: Waiting) -> None:
        """Leave one claim to its lease."""
        self._waiting.pop(waiting.held.token, None)
        if waiting in self._refused:
            self._refused.remove(waiting)
        self.reports.given_up(waiting.held.claim)
        self.registry.settle(waiting.held, Fate.UNRECORDED)

    def give_up_all(self) -> list[int]:
        """The shutdown's time is over: leave what is unwritten to the leases; return the jobs."""
        left = [*self._waiting.values(), *self._refused]
        for waiting in left:
            self.give_up(waiting)
        return [waiting.held.claim.id for waiting in left]

    async def _store_progress(self) -> None:
        batch = [h for h in self._news.values() if h.fate is None and not h.ended]
        self._news.clear()
        self._next_news = _now() + PROGRESS_SECONDS
        news = [(h.claim.id, h.token, h.control.progress) for h in batch if h.control.progress]
        if not news:
            return
        try:
            await self.session.call(endings.progress, WRITE_SECONDS, news)
        except Exception as error:
            if not concerns_data(error):
                self._news = {held.token: held for held in batch} | self._news
                raise
            log.warning("progress_refused", jobs=[id for id, _, _ in news], error=str(error))


def _is_lendable(waiting: Waiting) -> bool:
    return waiting.held.ended and not waiting.lent


def _has_landed(ending: Ending, found: Stands | None) -> bool:
    """Whether an earlier copy of this very write has happened. What never started leaves no
    history: without any, it went back to the queue."""
    if found is None:
        return ending.outcome is None
    return found.recorded_by == "holder"


def _as_recorded(waiting: Waiting, found: Stands | None) -> Ending:
    """An atomic handler's success can have been committed although its answer was lost."""
    recording: Ending | None = waiting.held.recording
    if recording is not None and found is not None and found.outcome == recording.outcome:
        return recording
    return waiting.ending


def _fate(ending: Ending) -> Fate:
    if ending.outcome is None:
        return Fate.RETURNED
    return Fate.INTERRUPTED if ending.outcome == "INTERRUPTED" else Fate.COMPLETED


def _expected_state(waiting: Waiting) -> str:
    """What the earlier copy of the statement must have decided, for those who are told of it."""
    ending, claim = waiting.ending, waiting.held.claim
    if ending.outcome in ("SUCCEEDED", "CANCELLED"):
        return str(ending.outcome)
    if ending.final or (
        ending.outcome in ("FAILED", "TIMED_OUT") and claim.failures + 1 >= claim.max_attempts
    ):
        return "DEAD"
    return "SCHEDULED" if ending.delay or ending.hold else "READY"


def _now() -> float:
    return asyncio.get_running_loop().time()
