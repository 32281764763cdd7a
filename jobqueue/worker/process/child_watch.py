"""A supervisor's children as the table shows them: the frozen are killed, the deaths recorded."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import EventLogger
from jobqueue.store import deaths
from jobqueue.store.connections import ExponentialBackoff, Session
from jobqueue.worker.hints import send_hint
from jobqueue.worker.process.liveness import announcements

CALL_SECONDS = 2.0
# A child without a beat for this long, while the database answers the supervisor, is replaced. The
# least values: a slow beat makes both longer.
STALE_SECONDS, LOOK_SECONDS = 60.0, 15.0


@dataclass(frozen=True, slots=True)
class Child:
    """One process, and the identity of its worker: unlike a pid it is never used again."""

    worker: UUID
    process: Process

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class ChildWatch:
    """Whoever has collected a child's exit status knows that it is dead, and records it."""

    def __init__(
        self,
        settings: Settings,
        session: Session,
        log: EventLogger,
        *,
        children: Callable[[], Collection[Child]],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.settings, self.session, self.log = settings, session, log
        self.children, self.is_stopping = children, is_stopping
        self.stale_seconds = max(STALE_SECONDS, settings.tolerated_silence_seconds)
        # After an outage the children beat between two looks.
        self.look_seconds = max(LOOK_SECONDS, settings.heartbeat_seconds)
        self._reaped: set[UUID] = set()  # whose deaths are not recorded yet
        self._silent: set[UUID] = set()  # without a beat at the last check
        self._news = asyncio.Event()

    def reaped(self, child: Child) -> None:
        """Its exit status has been collected."""
        self._reaped.add(child.worker)
        self._news.set()

    async def run(self) -> None:
        """The service; ends only by cancellation."""
        backoff, looked = ExponentialBackoff(), loop_time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(looked + self.look_seconds):
                    await self._news.wait()
            self._news.clear()
            if not await self.certify():
                await asyncio.sleep(backoff.next_delay())
                self._news.set()
                continue
            backoff.reset()
            if loop_time() >= looked + self.look_seconds:
                looked = loop_time()
                await self.end_the_silent()

    async def end_the_silent(self) -> None:
        """Kill a child whose row shows no beat at two checks in a row: it is frozen. A failed query
        proves nothing, and after an outage the children beat before the second check."""
        children = {child.worker: child for child in self.children()}
        try:
            silent = await self.session.call(
                deaths.silent_children, CALL_SECONDS, list(children), self.stale_seconds
            )
        except Exception:
            silent = set()
        if self.is_stopping():  # bounded by the deadline
            return
        for worker in silent & self._silent:
            child = children[worker]
            self.log.error("child_silent", pid=child.pid, seconds=self.stale_seconds)
            child.send(signal.SIGKILL)
        self._silent = silent - self._silent

    async def certify(self, *, last: bool = False) -> bool:
        """Record the deaths, so that nobody waits for the leases of the dead."""
        reaped = set(self._reaped)
        if not reaped:
            return True
        try:
            found = await self.session.call(deaths.certify_reaped, CALL_SECONDS, list(reaped))
            if found and self.settings.notify:
                await send_hint(self.session, CALL_SECONDS, announcements(found))
        except Exception as error:
            # No reason to end the children; the leases lapse by themselves.
            self.log.warning("death_record_failed", error=repr(error), last=last)
            return False
        self._reaped -= reaped
        for death in found:
            self.log.warning("worker_died", dead=str(death.worker), led=death.led)
        return True
