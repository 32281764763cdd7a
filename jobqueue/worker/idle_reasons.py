"""Why a worker claims nothing although jobs may wait: one word, in its row."""

from __future__ import annotations

import time
from collections.abc import Callable

from jobqueue.logs import get_logger
from jobqueue.states import IdleReason
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.outages import OutageLog
from jobqueue.worker.outcomes.receiver_threads import ReceiverThreads

# Shorter waits are normal: an outcome being written, a round whose answer is awaited.
MOMENT_SECONDS = 1.0
# Logged once it has lasted this long, and again every minute.
LASTING_SECONDS, AGAIN_SECONDS = 10.0, 60.0
log = get_logger()


class IdleReasons:
    """Checked at every beat."""

    def __init__(
        self,
        registry: InFlightJobs,
        signals: ReceiverThreads,
        outage_log: OutageLog,
        *,
        lost_slots: Callable[[], int],
        is_spent: Callable[[], bool],
        is_running: Callable[[], bool],
    ) -> None:
        self.registry, self.signals, self.outage_log = registry, signals, outage_log
        self.lost_slots, self.is_spent, self.is_running = lost_slots, is_spent, is_running
        self.reason: IdleReason | None = None
        self._claimed, self._claimed_at = -1, time.monotonic()
        self._since = self._log_at = 0.0

    def check(self) -> str:
        """Return the reason as one word, or an empty string if there is none."""
        self.signals.check()
        now, reason = time.monotonic(), self._find()
        if reason is not self.reason:
            self._end(now)
            self.reason, self._since, self._log_at = reason, now, now + LASTING_SECONDS
        if reason is not None and now >= self._log_at:
            self._log_at = now + AGAIN_SECONDS
            stack = self.signals.stacks if reason is IdleReason.SIGNALS else ""
            seconds = round(now - self._since, 1)
            log.warning("worker_idle", reason=reason, seconds=seconds, stack=stack)
        return reason or ""

    def _end(self, now: float) -> None:
        if self.reason is not None and now - self._since >= LASTING_SECONDS:
            log.info("worker_busy", reason=self.reason, seconds=round(now - self._since, 1))

    def _find(self) -> IdleReason | None:
        if not self.is_running():
            return None
        if self.signals.is_behind:
            return IdleReason.SIGNALS
        if self.registry.claimed != self._claimed:
            self._claimed, self._claimed_at = self.registry.claimed, time.monotonic()
        if time.monotonic() - self._claimed_at < MOMENT_SECONDS:
            return None
        if self.outage_log.concerns("claim"):
            return IdleReason.OUTAGE
        lost, free = self.lost_slots(), self.registry.free
        if lost and free <= lost:
            return IdleReason.ANSWERS
        if free <= 0 and all(inflight.ended for inflight in self.registry):
            return IdleReason.OUTCOMES
        if free > 0 and self.is_spent():
            return IdleReason.MAX_JOBS
        return None
