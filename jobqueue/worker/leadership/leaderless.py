"""Whether somebody leads the fleet, as the beats see it; said by every worker, once."""

from __future__ import annotations

import time

from jobqueue.logs import get_logger

# Longer than any change of leaders takes, whatever the settings.
PATIENCE_LEASES = 4
log = get_logger()


class LeaderWatch:
    """Nobody leads where all workers run with --no-leader, or none of them can do the work: then
    no lost job is reclaimed and no schedule fires."""

    def __init__(self, lease_seconds: float) -> None:
        self.error_policy = PATIENCE_LEASES * lease_seconds
        self._since: float | None = None
        self._told = False

    def seen(self, *, vacant: bool) -> None:
        """What a beat has found."""
        now = time.monotonic()
        if not vacant:
            if self._told:
                log.info("leader_returned")
            self._since, self._told = None, False
        elif self._since is None:
            self._since = now
        elif now - self._since > self.error_policy and not self._told:
            self._told = True
            log.warning("leader_missing", seconds=round(now - self._since))
