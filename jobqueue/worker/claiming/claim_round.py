"""One round: successes are written and jobs claimed in their place, each started at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog
from psycopg import AsyncConnection

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
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
log = structlog.get_logger("jobqueue")


@dataclass
class Intake:
    """What the rounds of all connections share."""

    worker: UUID
    settings: Settings
    registry: InFlightJobs
    executor: Executor
    lost_claims: LostClaims
    cursor: ScanCursor
    stopped: asyncio.Event
    share: int  # how many successes one round writes at most
    under_way: int = 0  # free slots that rounds have asked to fill

    @property
    def outcomes(self) -> Completer:
        return self.executor.completer

    @property
    def free(self) -> int:
        """How many slots nobody holds, nor may turn out to hold."""
        return self.registry.free - self.lost_claims.slots - self.under_way

    @property
    def room(self) -> int:
        """How many jobs a round can ask for."""
        if self.executor.task_signals.is_behind:
            return 0
        return self.free + len(self.outcomes.pending.lendable(self.share))

    def take(self, rows: Sequence[Claim], sent: float, *, start: bool) -> None:
        """All are registered before the first handler makes its first step."""
        for inflight in [self.registry.add(row, sent) for row in rows]:
            row = inflight.claim
            log.debug("job_claimed", job=row.id, task=row.task, queue=row.queue)
            if start:
                self.executor.start(inflight)
            else:
                self.executor.give_back(inflight)


class Rounds:
    """Those of one connection, one after the other."""

    def __init__(self, session: Session, intake: Intake) -> None:
        self.session, self.intake = session, intake
        self.backend: Backend | None = None
        session.prepare = self._meet

    async def _meet(self, connection: AsyncConnection[Any]) -> None:
        """Remember who serves a fresh connection, in case it is cut."""
        self.backend = await claims.backend(connection)

    async def claim(self, queue: str) -> bool | None:
        """Take as many jobs as there is room for; whether the queue may hold more. None: nobody
        knows, since there was no room after all, or the stop has come."""
        intake = self.intake
        await self.session.open(CALL_SECONDS)
        if intake.stopped.is_set() or intake.room <= 0:
            return None
        ended = intake.outcomes.pending.lend(intake.share)
        try:
            rows, asked, sent = await self._exchange(queue, ended)
        except BaseException as error:
            intake.outcomes.not_heard(ended)
            if not ended or not isinstance(error, Exception) or not concerns_data(error):
                raise
            intake.cursor.look(queue)
            return None  # it may be one of the outcomes: the next round goes without them
        lease, margin = intake.settings.lease_seconds, intake.settings.lease_margin_seconds
        late = loop_time() - sent > lease - margin
        intake.take(rows, sent, start=not (late or intake.stopped.is_set()))
        # None where all that was to make room is locked, if only by another claim that meant to
        # take it: such a one also locks what it then finds to be taken.
        return len(rows) >= asked if asked > 0 else None

    async def _exchange(
        self, queue: str, ended: Sequence[Waiting]
    ) -> tuple[Sequence[Claim], int, float]:
        """Return the rows, how many there could be at most, and when they were asked for."""
        intake, sent = self.intake, loop_time()
        asked, lease = intake.free + len(ended), intake.settings.lease_seconds
        # Not less than none, where doubts take room: what has ended may prove to be locked.
        fresh = max(asked - len(ended), 0)
        tokens, begun = new_tokens(asked), intake.cursor.begin(queue, sent)
        call, claim = self.session.call, (queue, intake.worker, tokens, lease, begun.after)
        intake.under_way += fresh
        try:
            if ended:
                endings = [waiting.ending for waiting in ended]
                answers, rows = await call(
                    finish_and_claim.finish_and_claim, CALL_SECONDS, *claim, endings
                )
                intake.outcomes.heard(ended, answers)
                asked -= len(ended) - len(answers)  # the slots of the others stay taken
            else:
                rows = await call(claims.claim, CALL_SECONDS, *claim)
        except BaseException:
            if self.session.connection is None:  # cut: nobody knows whether it was done
                intake.lost_claims.add(self.backend, tokens, until=sent + lease)
            raise
        finally:
            intake.under_way -= fresh
        intake.cursor.seen(queue, begun, rows, loop_time())
        if asked <= 0:  # it could take nothing, urgent or not
            intake.cursor.look(queue)
        return rows, asked, sent


def new_tokens(count: int) -> list[UUID]:
    """Return unique tokens shaped like UUIDv7.

    The leading time is for locality in the history's index alone; nothing reads it.
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
