"""Handlers that were told to stop and do not: reported with their stacks, then the worker goes."""

from __future__ import annotations

from collections.abc import Callable

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.worker.inflight import InFlight, InFlightJobs
from jobqueue.worker.process import stacks

REPORT_SECONDS = 60.0
# Its slot and its keys stay taken meanwhile; a fresh process gives the capacity back.
LEAVE_SECONDS = 300.0
log = get_logger()


class StuckHandlers:
    """Looks at every beat for handlers that ignore a cancel or a timeout."""

    def __init__(
        self, settings: Settings, registry: InFlightJobs, leave: Callable[[str], None]
    ) -> None:
        self.settings, self.registry, self.leave = settings, registry, leave

    def look(self) -> None:
        now = loop_time()
        for inflight in self.registry:
            if inflight.told is None or inflight.ended:
                continue
            ignored = now - inflight.told_first_at
            if ignored <= self.settings.cancel_seconds:
                continue
            if now - inflight.warned_at >= REPORT_SECONDS:
                inflight.warned_at = now
                self._report(inflight, ignored)
            if ignored > LEAVE_SECONDS:
                self.leave(f"the handler of job {inflight.claim.id} does not end")

    def _report(self, inflight: InFlight, ignored: float) -> None:
        log.warning(
            "handler_stop_ignored",
            job=inflight.claim.id,
            task=inflight.claim.task,
            reason=inflight.told,
            seconds=round(ignored, 1),
            stack=stacks.of_handler(inflight),
        )
