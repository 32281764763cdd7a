"""When jobs that this worker has put off for a moment fall due."""

from __future__ import annotations

from math import ceil, inf

# Later ones are the leader's, or the poll's: neither looks less often than this.
SOON_SECONDS = 5.0
# So close together they are promoted in one go.
APART_SECONDS = 0.02


class PromotionTimer:
    """Few numbers, however many jobs there are. Moments are those of the loop's clock, in seconds;
    a job's own one was stamped before its outcome was heard of, so it is never later."""

    def __init__(self) -> None:
        self._ticks: set[int] = set()

    @property
    def next(self) -> float:
        """The earliest moment; infinity when there is none."""
        return min(self._ticks) * APART_SECONDS if self._ticks else inf

    def add(self, seconds: float, now: float) -> bool:
        """Note a job that falls due in so many seconds; whether it is the earliest now."""
        if seconds > SOON_SECONDS:
            return False
        tick = ceil((now + seconds) / APART_SECONDS)
        is_first = not self._ticks or tick < min(self._ticks)
        self._ticks.add(tick)
        return is_first

    def take(self, now: float) -> bool:
        """Forget those that are due; whether there were any."""
        if not self._ticks:
            return False
        due = {tick for tick in self._ticks if tick * APART_SECONDS <= now}
        self._ticks -= due
        return bool(due)
