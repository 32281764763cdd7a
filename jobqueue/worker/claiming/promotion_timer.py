"""When jobs that this worker postponed briefly fall due."""

from __future__ import annotations

from math import ceil, inf

# Later ones are found by the leader or the poll: both check at least this often.
SOON_SECONDS = 5.0
# Jobs that are due this close together are promoted at once.
APART_SECONDS = 0.02


class PromotionTimer:
    """Keeps few numbers, however many jobs there are. Moments are seconds of the loop's clock. The
    database sets `run_at` before its answer arrives here, so a promotion never comes too early."""

    def __init__(self) -> None:
        self._ticks: set[int] = set()

    @property
    def next(self) -> float:
        """The earliest moment; infinity when there is none."""
        return min(self._ticks) * APART_SECONDS if self._ticks else inf

    def add(self, seconds: float, now: float) -> bool:
        """Add a job that falls due in this many seconds; return whether it is now the earliest."""
        if seconds > SOON_SECONDS:
            return False
        tick = ceil((now + seconds) / APART_SECONDS)
        is_first = not self._ticks or tick < min(self._ticks)
        self._ticks.add(tick)
        return is_first

    def pop_due(self, now: float) -> bool:
        """Remove those that are due; return whether there were any."""
        if not self._ticks:
            return False
        due = {tick for tick in self._ticks if tick * APART_SECONDS <= now}
        self._ticks -= due
        return bool(due)
