"""`--max-jobs`: how many attempts may still begin in this process."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.worker.inflight import Fate, InFlightJobs


@dataclass(slots=True)
class AttemptBudget:
    """All claim rounds draw on it. What was claimed and is returned unstarted does not count."""

    most: int
    registry: InFlightJobs
    asked: int = 0  # claims that rounds have sent and whose answers they await

    @property
    def begun(self) -> int:
        return self.registry.claimed - self.registry.counts[Fate.RETURNED]

    @property
    def left(self) -> int:
        return max(self.most - self.begun - self.asked, 0)

    @property
    def is_spent(self) -> bool:
        """Whether the last of these attempts has begun, and all of them have ended."""
        return self.begun >= self.most and not len(self.registry)
