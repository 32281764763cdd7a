"""One claim round: it writes successes and claims jobs in their place; each starts at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.store import claims, finish_and_claim, server_process
from jobqueue.store.claims import Claim
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import concerns_data
from jobqueue.store.server_process import ServerProcess
from jobqueue.worker.claiming.attempt_budget import AttemptBudget
from jobqueue.worker.claiming.lost_claims import LostClaims
from jobqueue.worker.claiming.scan_cursor import ScanCursor
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.outcomes.completer import Completer
from jobqueue.worker.outcomes.pending import Waiting
from jobqueue.worker.row_batches import RowsAside, concerns_row

CALL_SECONDS = 5.0
type Verb = Callable[..., Coroutine[Any, Any, list[Claim]]]
log = get_logger()


@dataclass
class Intake:
    """What the claim rounds of all connections share."""

    worker: UUID
    settings: Settings
    registry: InFlightJobs
    executor: Executor
    lost_claims: LostClaims
    cursor: ScanCursor
    stopped: asyncio.Event
    most_successes: int  # the most successes that one round writes
    budget: AttemptBudget | None  # None: any number of attempts may begin
    parked_taken: int = 0  # jobs claimed here that had been parked
    slots_requested: int = 0  # free slots that rounds in flight may fill

    @property
    def outcomes(self) -> Completer:
        return self.executor.completer

    @property
    def free(self) -> int:
        """How many slots are free that no lost or running round may still fill."""
        return self.within(self.registry.free - self.lost_claims.slots - self.slots_requested)

    def within(self, count: int) -> int:
        """Return how many of so many attempts may begin."""
        return count if self.budget is None else min(count, self.budget.left)

    @property
    def room(self) -> int:
        """How many jobs a round can claim."""
        if self.executor.task_signals.threads.is_behind:
            return 0
        return self.within(self.free + len(self.outcomes.pending.lendable(self.most_successes)))

    def note_asked(self, slots: int, count: int) -> None:
        """A round asks for so many jobs, for so many free slots; negative: it is answered."""
        self.slots_requested += slots
        if self.budget is not None:
            self.budget.asked += count

    def accept(self, rows: Sequence[Claim], sent: float, *, start: bool) -> None:
        """Register all of them, then start (or return) each."""
        for inflight in [self.registry.add(row, sent) for row in rows]:
            row = inflight.claim
            log.debug("job_claimed", job=row.id, task=row.task, queue=row.queue)
            self.parked_taken += row.parked_seconds is not None
            if start:
                self.executor.start(inflight)
            else:
                self.executor.give_back(inflight, at_once=self.stopped.is_set())


class ClaimRound:
    """The claim rounds of one connection, in sequence."""

    def __init__(self, session: Session, intake: Intake) -> None:
        self.session, self.intake = session, intake
        self.aside = RowsAside("claim")
        self.backend: ServerProcess | None = None
        session.prepare = self._note_backend

    async def _note_backend(self, connection: AsyncConnection[Any]) -> None:
        """Remember the server process behind a fresh connection, in case it is cut."""
        self.backend = await server_process.of_connection(connection)

    async def claim(self, queue: str) -> bool | None:
        """Claim as many jobs as there is room for. Returns whether the queue may hold more; None
        if that is unknown, because there was no room after all or the worker is stopping."""
        intake = self.intake
        await self.session.open(CALL_SECONDS)
        if intake.stopped.is_set() or intake.room <= 0:
            return None
        if self.aside:
            return await self._claim_around(queue)
        ended = intake.outcomes.pending.lend(intake.most_successes)
        try:
            rows, asked, sent = await self._exchange(queue, ended)
        except BaseException as error:
            intake.outcomes.mark_unsent(ended)
            if not isinstance(error, Exception) or not _is_refusal(error):
                raise
            intake.cursor.request_full_scan(queue)
            if ended:
                return None  # an outcome may be the cause: the next round carries none
            return await self._claim_apart(queue)
        self._accept(rows, sent)
        # None if no ended job could be written because all their rows are locked, for instance by
        # another claim, which briefly locks rows it does not get.
        return len(rows) >= asked if asked > 0 else None

    def _accept(self, rows: Sequence[Claim], sent: float) -> None:
        intake = self.intake
        lease, margin = intake.settings.lease_seconds, intake.settings.lease_margin_seconds
        late = loop_time() - sent > lease - margin
        intake.accept(rows, sent, start=not (late or intake.stopped.is_set()))

    async def _claim_around(self, queue: str) -> bool:
        """Claim while a row is set aside: without outcomes, and always from the queue's start."""
        try:
            asked = await self.claim_plain(
                claims.claim_around, queue, self.intake.free, self.aside.ids()
            )
        except psycopg.Error as error:
            if not concerns_row(error):
                raise
            return await self._claim_apart(queue)
        return asked > 0

    async def _claim_apart(self, queue: str) -> bool:
        """The database refuses some row: claim one by one and set that one aside, so that the
        others run. Returns whether the queue may hold more."""
        free = self.intake.free
        jobs = await self.session.call(claims.ready, CALL_SECONDS, queue, free, self.aside.ids())
        for job in jobs:
            if self.intake.stopped.is_set() or self.intake.free <= 0:
                break
            try:
                await self.claim_plain(claims.claim_one, queue, 1, job)
            except psycopg.Error as error:
                if not concerns_row(error):
                    raise
                self.aside.add(job, error)
        return len(jobs) >= free

    async def claim_plain(
        self,
        verb: Callable[..., Coroutine[Any, Any, list[Claim]]],
        queue: str,
        count: int,
        what: Any,
    ) -> int:
        """Send a claim without outcomes; return how many rows it brought."""
        intake, sent = self.intake, loop_time()
        tokens, lease = new_tokens(max(count, 0)), intake.settings.lease_seconds
        given = tokens[0] if verb in (claims.claim_one, claims.claim_suspect) else tokens
        intake.note_asked(len(tokens), len(tokens))
        try:
            rows = await self.session.call(
                verb, CALL_SECONDS, queue, intake.worker, given, lease, what
            )
        except BaseException as error:
            self._note_doubt(error, tokens, sent + lease)
            raise
        finally:
            intake.note_asked(-len(tokens), -len(tokens))
        self._accept(rows, sent)
        return len(rows)

    def _note_doubt(self, error: BaseException, tokens: Sequence[UUID], until: float) -> None:
        """Only the server's own refusal proves that nothing was claimed: after any other error the
        statement may have been executed."""
        is_cut = self.session.connection is None
        if is_cut or not getattr(error, "sqlstate", None):
            self.intake.lost_claims.add(self.backend, tokens, until=until, ended=not is_cut)

    async def _exchange(
        self, queue: str, ended: Sequence[Waiting]
    ) -> tuple[Sequence[Claim], int, float]:
        """Return the rows, how many there could be, and when they were asked for."""
        intake, sent = self.intake, loop_time()
        count = asked = intake.within(intake.free + len(ended))
        lease = intake.settings.lease_seconds
        # `free` is negative while lost rounds hold slots.
        fresh = max(asked - len(ended), 0)
        tokens, scan = new_tokens(count), intake.cursor.begin(queue, sent)
        call, claim = self.session.call, (queue, intake.worker, tokens, lease, scan.after)
        intake.note_asked(fresh, count)
        try:
            if ended:
                endings = [waiting.ending for waiting in ended]
                answers, rows = await call(
                    finish_and_claim.finish_and_claim, CALL_SECONDS, *claim, endings
                )
                intake.outcomes.apply_answers(ended, answers)
                asked -= len(ended) - len(answers)  # the other slots stay taken
            else:
                rows = await call(claims.claim, CALL_SECONDS, *claim)
        except BaseException as error:
            self._note_doubt(error, tokens, sent + lease)
            raise
        finally:
            intake.note_asked(-fresh, -count)
        intake.cursor.record(queue, scan, rows, loop_time())
        if asked <= 0:  # it could claim nothing, however urgent
            intake.cursor.request_full_scan(queue)
        return rows, asked, sent


def _is_refusal(error: Exception) -> bool:
    """Whether the database or the driver refuses what one row or one outcome holds."""
    return concerns_data(error) or (isinstance(error, psycopg.Error) and concerns_row(error))


def new_tokens(count: int) -> list[UUID]:
    """Return unique tokens shaped like UUIDv7.

    The leading time only gives locality in the history's index; nothing reads it.
    """
    stamp = (time.time_ns() // 1_000_000) & ((1 << 48) - 1)
    noise = os.urandom(10 * count)
    return [
        UUID(int=_shape(stamp, int.from_bytes(noise[10 * i : 10 * i + 10], "big")))
        for i in range(count)
    ]


def _shape(stamp: int, noise: int) -> int:
    high, low = noise >> 68, noise & ((1 << 62) - 1)  # 12 and 62 random bits
    return stamp << 80 | 7 << 76 | high << 64 | 2 << 62 | low
