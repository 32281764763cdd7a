"""Stops handlers while their leases still hold. Only the clock decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import InFlight, InFlightJobs, Stop

log = get_logger()


class LeaseGuard:
    """A handler whose lease was not renewed is stopped early enough to clean up. If it still runs
    when the lease is no longer safe, the process exits, since another worker may claim the job."""

    def __init__(
        self,
        settings: Settings,
        registry: InFlightJobs,
        executor: Executor,
        exit_now: Callable[[str], None],
    ) -> None:
        self.registry, self.executor, self.exit_now = registry, executor, exit_now
        # Counted from when the last good claim or renewal was sent.
        self.end_seconds = settings.lease_seconds - settings.lease_margin_seconds
        self.cancel_seconds = settings.cancel_seconds
        self.stop_seconds = self.end_seconds - settings.cancel_seconds
        # A claim's answer may take a while, so a new claim can fall due before the known ones.
        self.check_seconds = settings.lease_margin_seconds

    async def run(self) -> None:
        """The service: sleeps until the next lease falls short."""
        while (due := self.check()) is not None:
            now = loop_time()
            await asyncio.sleep(max(min(due - now, self.check_seconds), 0.005))

    def check(self) -> float | None:
        """Stop handlers in time. Returns when to check again; None if the process exits."""
        now = loop_time()
        due = now + self.stop_seconds
        for inflight in self.registry:
            if not inflight.needs_lease:
                continue
            stop = inflight.trusted_from + self.stop_seconds
            end = inflight.trusted_from + self.end_seconds
            if stop <= now:
                self._request_stop(inflight)
                # After a freeze the end has passed: the handler still gets time to clean up.
                end = max(end, inflight.stop_requested_at + self.cancel_seconds)
            if end <= now:
                self.exit_now(f"job {inflight.claim.id} outlives the trust in its lease")
                return None
            due = min(due, end if stop <= now else stop)
        return due

    def _request_stop(self, inflight: InFlight) -> None:
        if inflight.stop_reason is None:
            log.warning("lease_not_renewed", job=inflight.claim.id, task=inflight.claim.task)
            self.executor.stop(inflight, Stop.LEASE)
