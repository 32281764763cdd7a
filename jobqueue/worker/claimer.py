"""Claims as many jobs as there are free slots, one queue at a time, and starts each at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from jobqueue.conf import Settings
from jobqueue.store import claims, promotion
from jobqueue.store.claims import Claim
from jobqueue.store.connections import Session
from jobqueue.worker.executor import Executor
from jobqueue.worker.held import Registry
from jobqueue.worker.tokens import new_tokens
from jobqueue.worker.turns import Turns
from jobqueue.worker.weather import Patience

CALL_SECONDS = 5.0
PROMOTE_LIMIT = 500
# After a round that found less than it asked for: a burst of wakes costs one more round.
PAUSE_SECONDS = 0.005
FULL_SECONDS = 1.0  # a lost event costs at most this
log = structlog.get_logger("jobqueue")


@dataclass(slots=True)
class Doubt:
    """A round whose answer was lost: its rows may be ours."""

    pid: int
    started: Any
    tokens: list[UUID]
    until: float  # when its leases have lapsed anyway
    ended: bool = False  # its server process is gone, so the next answer is final


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
        self.turns = Turns(queues)
        self._wake = asyncio.Event()
        self._stopping = False
        self._doubts: list[Doubt] = []
        self._identity: tuple[int, Any] = (0, None)

    def wake(self, queue: str | None = None) -> None:
        """Jobs of this queue (None: of any) may be ready."""
        if self.turns.heat(queue):
            self._wake.set()

    def stop(self) -> None:
        """No further claim is sent; the round in flight is handed back unstarted."""
        self._stopping = True
        self._wake.set()
        self.registry.freed.set()

    async def run(self) -> None:
        """The service: rounds while there is work and room, waiting for either otherwise."""
        self.turns.heat(None)
        while not self._stopping:
            try:
                await self._step()
            except Exception as error:
                delay = self.patience.failed(error)
                self.turns.heat(None)
                await self._wait(self._wake, delay)
            else:
                self.patience.succeeded()

    async def _step(self) -> None:
        if self._doubts:
            await self._recover()
        free = self.registry.free
        if free <= 0 or self.executor.receivers.is_behind:
            self.registry.freed.clear()
            await self._wait(self.registry.freed, FULL_SECONDS)
            return
        self._wake.clear()  # before the statement is sent: a wake during the round survives it
        queue = self.turns.next()
        if queue is None:
            await self._idle()
            return
        found = await self._round(queue, free)
        if found == free:
            self.turns.heat(queue)
        else:
            await self._pause(PAUSE_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311

    async def _pause(self, seconds: float) -> None:
        if not self._stopping:
            await asyncio.sleep(seconds)

    async def _wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, at most so long; whether it came. Stopping ends the wait."""
        if self._stopping:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
                return True
        return False

    async def _idle(self) -> None:
        """Nothing to claim: wait for a wake; at the latest look everywhere, jittered anew."""
        seconds = self.settings.effective_poll_seconds * random.uniform(0.8, 1.2)  # noqa: S311
        if not await self._wait(self._wake, seconds):
            await self.session.call(promotion.promote, CALL_SECONDS, PROMOTE_LIMIT)
            self.turns.heat(None)

    async def _round(self, queue: str, limit: int) -> int:
        """One claim. Returns how many rows came."""
        loop = asyncio.get_running_loop()
        await self._connect()
        tokens, sent = new_tokens(limit), loop.time()
        lease = self.settings.lease_seconds
        try:
            rows = await self.session.call(
                claims.claim, CALL_SECONDS, queue, self.worker, tokens, lease
            )
        except BaseException:
            if self.session.connection is None:  # cut: nobody knows whether it was done
                pid, started = self._identity
                self._doubts.append(Doubt(pid, started, tokens, sent + lease))
            raise
        too_late = loop.time() - sent > lease - self.settings.lease_margin_seconds
        for row in rows:
            self._take(row, sent, start=not (self._stopping or too_late))
        return len(rows)

    def _take(self, row: Claim, sent: float, *, start: bool) -> None:
        held = self.registry.add(row, sent)
        log.debug("job_claimed", job=row.id, task=row.task, queue=row.queue)
        if start:
            self.executor.start(held)
        else:
            self.executor.give_back(held)

    async def _connect(self) -> None:
        """Remember who the server process behind this connection is, in case it is cut."""
        born = self.session.born
        await self.session.open(CALL_SECONDS)
        if self.session.born != born:
            self._identity = await self.session.call(claims.session, CALL_SECONDS)

    async def _recover(self) -> None:
        """Ask which rows the lost rounds brought, and hand them back unstarted, uncounted.

        Where the old server process cannot be ended (a pooler stands between), asking goes on
        until the leases have lapsed: rows that turn up late are released, never run.
        """
        await self._connect()
        now = asyncio.get_running_loop().time()
        for doubt in list(self._doubts):
            if not doubt.ended:
                doubt.ended = await self.session.call(
                    claims.end_session, CALL_SECONDS, doubt.pid, doubt.started
                )
            rows = await self.session.call(claims.found, CALL_SECONDS, self.worker, doubt.tokens)
            for row in rows:
                self._take(row, now, start=False)
            if rows:
                log.warning("claims_recovered", jobs=[row.id for row in rows])
            if doubt.ended or rows or now > doubt.until:
                self._doubts.remove(doubt)

    async def settle(self) -> None:
        """At the stop, once the service has ended: the last lost rounds are looked for."""
        with contextlib.suppress(Exception):
            if self._doubts:
                await self._recover()
