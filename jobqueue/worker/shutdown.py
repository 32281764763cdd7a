"""The end of a worker in phases: drain, cancel, release, stop; and its accounting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from jobqueue.conf import EXIT_MARGIN_SECONDS, Settings
from jobqueue.logs import get_logger
from jobqueue.states import Phase
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import Fate, InFlight, InFlightJobs, Stop
from jobqueue.worker.outcomes.completer import Completer
from jobqueue.worker.process import stacks
from jobqueue.worker.services import Services, unwind

# Parts of the margin after drain and cancel.
RELEASE_SECONDS = 0.8
LAST_SECONDS = 0.3  # between the end of the last bounded step and the enforced end
CLOSE_SECONDS = 2.0  # for closing everything, if that much is left
# A job whose handler has not ended may not be claimed before this process is certainly gone: the
# hold covers the enforced end, the dead-man switch after it and a little more.
HOLD_SECONDS = EXIT_MARGIN_SECONDS
HELD_EXIT_SECONDS = HOLD_SECONDS - 0.6
UNRECORDED = 6  # the exit code of a worker that stopped, but `unrecorded` is not zero
log = get_logger()


class Shutdown:
    """Whatever requests it (a signal, drain mode, a failing service, a certificate of death), it
    is the same shutdown; a further request only escalates it."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_begin: Callable[[], None],
        on_phase: Callable[[], None],
        on_end: Callable[[float], None],
    ) -> None:
        self.settings = settings
        self._on_begin, self._on_phase, self._on_end = on_begin, on_phase, on_end
        self.phase = Phase.STARTING
        self.reason = ""
        self.failed = False  # it must not end with exit code 0
        self.begun_at = self.end = 0.0  # monotonic; the end is the enforced one
        self.requested = asyncio.Event()
        self.hurried = asyncio.Event()

    def request(
        self,
        reason: str,
        *,
        failed: bool = False,
        hurry: bool = False,
        since: float | None = None,
    ) -> None:
        """Stop claiming and exit. `since` is the moment of the request, if it took a while to
        arrive."""
        self.failed = self.failed or failed
        if hurry:  # nothing that runs here counts any more
            self.hurried.set()
        if self.requested.is_set():
            return
        self.reason = reason
        self.begun_at = time.monotonic() if since is None else since
        self.end = self.begun_at + self.settings.exit_seconds
        self._on_end(self.end)
        self.requested.set()
        self._on_begin()
        self.enter(Phase.DRAINING)

    def signalled(self, since: float | None = None) -> None:
        """TERM or INT: the first one drains, the second one cancels the running handlers."""
        if self.requested.is_set():
            self.hurried.set()
        self.request("signal", since=since)

    def enter(self, phase: Phase) -> None:
        """Make the phase visible before its work begins."""
        self.phase = phase
        if phase is not Phase.RUNNING:
            log.info("shutdown_phase", phase=phase, reason=self.reason)
            self._on_phase()

    def left(self, seconds: float) -> float:
        """Return how many of these seconds, counted from the request, are left."""
        return max(self.begun_at + seconds - time.monotonic(), 0.0)

    def sooner(self, seconds: float) -> None:
        """Shorten the deadline: the process must be gone in this many seconds."""
        self.end = min(self.end, time.monotonic() + seconds)
        self._on_end(self.end)

    @property
    def cancel_left(self) -> float:
        """Return how many seconds running handlers may take to unwind."""
        both = self.settings.drain_seconds + self.settings.cancel_seconds
        return min(self.settings.cancel_seconds, self.left(both))

    async def drain(self, registry: InFlightJobs, intake: asyncio.Task[None] | None) -> None:
        """Running jobs get the drain period; the claim round in flight is awaited and its jobs are
        handed back."""
        for inflight in registry:
            inflight.control.stopping = True
        drained = _empty(registry, intake)
        await _first(self.left(self.settings.drain_seconds), drained, self.hurried.wait())

    async def cancel(self, registry: InFlightJobs, executor: Executor) -> None:
        """Ask the running handlers to unwind; they may clean up."""
        if not len(registry):
            return
        self.enter(Phase.CANCELLING)
        for inflight in registry:
            executor.stop(inflight, Stop.SHUTDOWN)
        await _first(self.cancel_left, _empty(registry, None))

    async def release(
        self, registry: InFlightJobs, executor: Executor, completer: Completer, services: Services
    ) -> list[InFlight]:
        """Jobs whose handlers did not unwind are released with a hold. Remaining outcomes are then
        written; any that cannot be are logged and left for their leases to lapse. Returns the
        claims whose handlers have not ended."""
        self.enter(Phase.RELEASING)
        running = [inflight for inflight in registry if not inflight.ended]
        if running:
            self.sooner(HELD_EXIT_SECONDS)
        for inflight in running:
            if inflight.committed:
                executor.record_committed(inflight)
            elif inflight.fate is None:
                executor.release_with_hold(inflight, hold=HOLD_SECONDS)
        services.expect("completer")
        completer.close()
        for inflight in running:  # while that is being written
            _log_abandoned(inflight)
        await services.end("completer", RELEASE_SECONDS)
        lost = completer.give_up_all()
        for inflight in registry:
            if inflight.fate is None:
                lost.append(inflight.claim.id)
                registry.record_fate(inflight, Fate.UNRECORDED)
        if lost:
            log.error("jobs_unrecorded", jobs=lost)
        return [inflight for inflight in running if not inflight.ended]

    def report(self, registry: InFlightJobs) -> dict[str, object]:
        """Return the accounting: every claimed job is in exactly one of the four counts."""
        counts = {str(fate): number for fate, number in registry.counts.items()}
        return {
            **counts,
            "claimed": registry.claimed,
            "duration_seconds": round(time.monotonic() - self.begun_at, 3),
            "reason": self.reason,
        }


def _log_abandoned(inflight: InFlight) -> None:
    job, task, stack = inflight.claim.id, inflight.claim.task, stacks.of_handler(inflight)
    if inflight.committed:
        log.error("commit_hook_abandoned", job=job, task=task, stack=stack)
    else:
        log.error("handler_abandoned", job=job, task=task, stack=stack)


async def _first(seconds: float, *events: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of these completes or the time is up; the others are cancelled and awaited."""
    waiters = {asyncio.create_task(event, name="shutdown-wait") for event in events}
    try:
        await asyncio.wait(waiters, timeout=seconds, return_when="FIRST_COMPLETED")
    finally:
        await unwind(waiters, 1.0)


async def _empty(registry: InFlightJobs, intake: asyncio.Task[None] | None) -> None:
    """Wait until no claim is held and claiming has ended."""
    if intake is not None:
        await asyncio.wait({intake})
    while len(registry):
        registry.freed.clear()
        await registry.freed.wait()
