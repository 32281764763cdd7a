"""Stops handlers before their leases run out, by this process's clock, without a query."""

from __future__ import annotations

import asyncio

from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.inflight import InFlight, InFlightJobs, Stop

log = get_logger()


class LeaseGuard:
    """A handler whose lease was not renewed is stopped early enough to clean up. If it still runs
    when the lease is no longer safe, the watchdog ends the process."""

    def __init__(self, settings: Settings, registry: InFlightJobs, executor: Executor) -> None:
        self.registry, self.executor = registry, executor
        # Counted from when the last good claim or renewal was sent.
        self.stop_seconds = settings.trust_seconds - settings.cancel_seconds
        # A lease counts from when its claim was sent, so one whose answer came late may end before
        # all known ones. Never sleep longer than this.
        self.check_seconds = settings.lease_margin_seconds

    async def run(self) -> None:
        """The service: sleeps until the next lease falls short."""
        while True:
            due = self.check()
            await asyncio.sleep(max(min(due - loop_time(), self.check_seconds), 0.005))

    def check(self) -> float:
        """Stop handlers in time. Returns when to check again."""
        now = loop_time()
        due = now + self.stop_seconds
        for inflight in self.registry:
            if not inflight.needs_lease:
                continue
            stop = inflight.trusted_from + self.stop_seconds
            if stop <= now:
                self._request_stop(inflight)
            else:
                due = min(due, stop)
        return due

    def _request_stop(self, inflight: InFlight) -> None:
        if inflight.stop_reason is None:
            log.warning("lease_not_renewed", job=inflight.claim.id, task=inflight.claim.task)
            self.executor.stop(inflight, Stop.LEASE)
