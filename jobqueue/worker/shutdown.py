"""The end of a worker in phases: drain, cancel, release, stop; and its accounting."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from jobqueue.conf import EXIT_MARGIN_SECONDS, Settings
from jobqueue.states import Phase
from jobqueue.worker import stacks
from jobqueue.worker.executor import Executor
from jobqueue.worker.finisher import Finisher
from jobqueue.worker.held import Fate, Held, Registry, Stop

# Of the margin behind drain and cancel: for writing releases, and for closing behind that.
RELEASE_SECONDS = EXIT_MARGIN_SECONDS / 2
log = structlog.get_logger("jobqueue")


class Shutdown:
    """Whatever asks for it (signal, drain mode, a failing service, a certificate of death) starts
    the same one; asking again only escalates."""

    def __init__(self, settings: Settings, *, on_begin: Callable[[], None]) -> None:
        self.settings, self._on_begin = settings, on_begin
        self.phase = Phase.STARTING
        self.reason = ""
        self.failed = False  # it must not end with exit code 0
        self.begun_at = 0.0
        self.requested = asyncio.Event()
        self.hurried = asyncio.Event()

    def request(self, reason: str, *, failed: bool = False, hurry: bool = False) -> None:
        """Stop taking jobs and leave. A further request with `hurry` skips to cancelling."""
        self.failed = self.failed or failed
        if hurry or (self.requested.is_set() and reason == self.reason == "signal"):
            self.hurried.set()
        if not self.requested.is_set():
            self.reason, self.begun_at = reason, time.monotonic()
            self.requested.set()
            self.enter(Phase.DRAINING)
            self._on_begin()

    def signalled(self) -> None:
        """TERM or INT: the first drains, the second cancels what still runs."""
        if self.requested.is_set():
            self.hurried.set()
        self.request("signal")

    def enter(self, phase: Phase) -> None:
        """A phase is visible before its work begins."""
        self.phase = phase
        if phase is not Phase.RUNNING:
            log.info("shutdown_phase", phase=phase, reason=self.reason)

    def left(self, seconds: float) -> float:
        """Return how much of so many seconds since the beginning is left."""
        return max(self.begun_at + seconds - time.monotonic(), 0.0)

    async def drain(self, registry: Registry, intake: asyncio.Task[None]) -> None:
        """Started jobs get their time; the round in flight is awaited and handed back."""
        for held in registry:
            held.control.stopping = True
        await _first(self.left(self.settings.drain_seconds), self.hurried, registry, intake)

    async def cancel(self, registry: Registry, executor: Executor) -> None:
        """What still runs is told to unwind, and may clean up."""
        if not len(registry):
            return
        self.enter(Phase.CANCELLING)
        since = time.monotonic()
        for held in registry:
            executor.stop(held, Stop.SHUTDOWN)
        seconds = since + self.settings.cancel_seconds - time.monotonic()
        await _first(seconds, None, registry, None)

    async def release(
        self, registry: Registry, executor: Executor, finisher: Finisher
    ) -> list[Held]:
        """Who did not unwind is released with a hold; then everything is written, or left to its
        lease and said so. Returns the claims whose handlers have not ended."""
        self.enter(Phase.RELEASING)
        running = [held for held in registry if not held.ended]
        for held in running:
            _tell_of(held)
            if held.fate is None:
                executor.release_with_hold(held, hold=EXIT_MARGIN_SECONDS)
        finisher.close()
        end = time.monotonic() + RELEASE_SECONDS
        while len(finisher) and time.monotonic() < end:  # noqa: ASYNC110  (the deadline rules)
            await asyncio.sleep(0.01)
        if lost := finisher.give_up_all():
            log.error("left_to_lease_expiry", jobs=lost)
        for held in registry:
            registry.settle(held, Fate.UNRECORDED)
        return running

    def report(self, registry: Registry) -> dict[str, object]:
        """Every claimed job in exactly one of the four counts."""
        counts = {str(fate): number for fate, number in registry.counts.items()}
        return {
            **counts,
            "claimed": registry.claimed,
            "duration_seconds": round(time.monotonic() - self.begun_at, 3),
            "reason": self.reason,
        }


def _tell_of(held: Held) -> None:
    stack = stacks.of_handler(held)
    log.error("handler_did_not_end", job=held.claim.id, task=held.claim.task, stack=stack)


async def _first(
    seconds: float,
    event: asyncio.Event | None,
    registry: Registry,
    intake: asyncio.Task[None] | None,
) -> None:
    """Wait until nothing is held and the intake has ended, or the event, or the time is over."""
    waiter = asyncio.ensure_future(_empty(registry, intake))
    others = [asyncio.ensure_future(event.wait())] if event is not None else []
    try:
        await asyncio.wait({waiter, *others}, timeout=seconds, return_when="FIRST_COMPLETED")
    finally:
        for loser in (waiter, *others):
            loser.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loser


async def _empty(registry: Registry, intake: asyncio.Task[None] | None) -> None:
    if intake is not None:
        await asyncio.wait({intake})
    while len(registry):
        registry.freed.clear()
        await registry.freed.wait()
