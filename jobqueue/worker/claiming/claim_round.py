"""One round: write successes and claim jobs in their place; each job is started at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.store import claims, finish_and_claim
from jobqueue.store.claims import Backend, Claim
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import concerns_data
from jobqueue.worker.claiming.lost_claims import LostClaims
from jobqueue.worker.claiming.scan_cursor import ScanCursor
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.outcomes.completer import Completer
from jobqueue.worker.outcomes.pending import Waiting

CALL_SECONDS = 5.0
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
    share: int  # how many successes one round writes at most
    slots_requested: int = 0  # free slots that rounds have asked to fill

    @property
    def outcomes(self) -> Completer:
        return self.executor.completer

    @property
    def free(self) -> int:
        """How many slots are free, with no lost or running round that may fill them."""
        return self.registry.free - self.lost_claims.slots - self.slots_requested

    @property
    def room(self) -> int:
        """How many jobs a round can claim."""
        if self.executor.task_signals.is_behind:
            return 0
        return self.free + len(self.outcomes.pending.lendable(self.share))

    def accept(self, rows: Sequence[Claim], sent: float, *, start: bool) -> None:
        """Register all of them, then start (or return) each."""
        for inflight in [self.registry.add(row, sent) for row in rows]:
            row = inflight.claim
            log.debug("job_claimed", job=row.id, task=row.task, queue=row.queue)
            if start:
                self.executor.start(inflight)
            else:
                self.executor.give_back(inflight)


class ClaimRound:
    """The claim rounds of one connection, one after the other."""

    def __init__(self, session: Session, intake: Intake) -> None:
        self.session, self.intake = session, intake
        self.backend: Backend | None = None
        session.prepare = self._note_backend

    async def _note_backend(self, connection: AsyncConnection[Any]) -> None:
        """Remember the server process of a fresh connection, in case it is cut."""
        self.backend = await claims.backend(connection)

    async def claim(self, queue: str) -> bool | None:
        """Claim as many jobs as there is room for; whether the queue may hold more. None: unknown,
        because there was no room after all, or the worker is stopping."""
        intake = self.intake
        await self.session.open(CALL_SECONDS)
        if intake.stopped.is_set() or intake.room <= 0:
            return None
        ended = intake.outcomes.pending.lend(intake.share)
        try:
            rows, asked, sent = await self._exchange(queue, ended)
        except BaseException as error:
            intake.outcomes.mark_unsent(ended)
            if not ended or not isinstance(error, Exception) or not concerns_data(error):
                raise
            intake.cursor.request_full_scan(queue)
            return None  # one of the outcomes may be the cause: the next round goes without them
        lease, margin = intake.settings.lease_seconds, intake.settings.lease_margin_seconds
        late = loop_time() - sent > lease - margin
        intake.accept(rows, sent, start=not (late or intake.stopped.is_set()))
        # None where every row that was to make room is locked. It may be another claim that locks
        # it: a claim also locks rows that it then finds taken.
        return len(rows) >= asked if asked > 0 else None

    async def _exchange(
        self, queue: str, ended: Sequence[Waiting]
    ) -> tuple[Sequence[Claim], int, float]:
        """Return the rows, how many there could be at most, and when they were asked for."""
        intake, sent = self.intake, loop_time()
        asked, lease = intake.free + len(ended), intake.settings.lease_seconds
        # Never negative: lost rounds may hold slots, and ended jobs may turn out to be locked.
        fresh = max(asked - len(ended), 0)
        tokens, scan = new_tokens(asked), intake.cursor.begin(queue, sent)
        call, claim = self.session.call, (queue, intake.worker, tokens, lease, scan.after)
        intake.slots_requested += fresh
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
        except BaseException:
            if self.session.connection is None:  # cut: it is not known whether it was executed
                intake.lost_claims.add(self.backend, tokens, until=sent + lease)
            raise
        finally:
            intake.slots_requested -= fresh
        intake.cursor.record(queue, scan, rows, loop_time())
        if asked <= 0:  # it could claim nothing, urgent or not
            intake.cursor.request_full_scan(queue)
        return rows, asked, sent


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
