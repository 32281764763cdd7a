"""Handlers that ignore a stop: reported with their stacks; in the end the worker exits."""

from __future__ import annotations

from collections.abc import Callable

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.worker.inflight import InFlight, InFlightJobs
from jobqueue.worker.process import stacks

REPORT_SECONDS = 60.0
# Until then its slot stays taken; a fresh process restores the capacity.
EXIT_SECONDS = 300.0
log = get_logger()


class StuckHandlers:
    """Checks at every beat for handlers that ignore a cancel or a timeout."""

    def __init__(
        self, settings: Settings, registry: InFlightJobs, request_shutdown: Callable[[str], None]
    ) -> None:
        self.settings, self.registry, self.request_shutdown = settings, registry, request_shutdown

    def check(self) -> None:
        now = loop_time()
        for inflight in self.registry:
            if inflight.stop_reason is None or not inflight.needs_lease:
                continue
            ignored = now - inflight.stop_requested_at
            over = ignored - self.settings.cancel_seconds
            if over <= 0:
                continue
            if now - inflight.reported_at >= REPORT_SECONDS:
                inflight.mark_reported(now)
                self._report(inflight, ignored)
            if over > EXIT_SECONDS:
                self.request_shutdown(f"the handler of job {inflight.claim.id} does not end")

    def _report(self, inflight: InFlight, ignored: float) -> None:
        log.warning(
            "handler_stop_ignored",
            job=inflight.claim.id,
            task=inflight.claim.task,
            reason=inflight.stop_reason,
            seconds=round(ignored, 1),
            stack=stacks.of_handler(inflight),
        )
