"""Whether any worker leads, as seen by the heartbeats; every worker logs it once."""

from __future__ import annotations

import time

from jobqueue.logs import get_logger

# Longer than any change of leader takes, with any settings.
MISSING_LEASES = 4
log = get_logger()


class LeaderWatch:
    """There is no leader when all workers run with --no-leader, or none of them can do the work.
    Then no lost job is reclaimed and no schedule fires."""

    def __init__(self, lease_seconds: float) -> None:
        self.missing_seconds = MISSING_LEASES * lease_seconds
        self._since: float | None = None
        self._is_logged = False

    def observe(self, *, vacant: bool) -> None:
        """Take in what a beat found."""
        now = time.monotonic()
        if not vacant:
            if self._is_logged:
                log.info("leader_returned")
            self._since, self._is_logged = None, False
        elif self._since is None:
            self._since = now
        elif now - self._since > self.missing_seconds and not self._is_logged:
            self._is_logged = True
            log.warning("leader_missing", seconds=round(now - self._since))
