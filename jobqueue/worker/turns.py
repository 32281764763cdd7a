"""Which queue is asked next: only those that may hold something, in weighted turns."""

from __future__ import annotations

from collections.abc import Mapping


class Turns:
    """Smooth weighted round robin over the queues that may have ready jobs.

    A queue is hot from a wake, a poll or a full round until a claim from it is sent.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0)
        self._hot: set[str] = set()

    def heat(self, queue: str | None) -> bool:
        """Mark one queue, or all; whether that concerns this worker."""
        if queue is None:
            self._hot.update(self._weights)
        elif queue in self._weights:
            self._hot.add(queue)
        else:
            return False
        return True

    def next(self) -> str | None:
        """Return the queue whose turn it is and cool it; None when all are cold."""
        if len(self._weights) == 1:
            return self._hot.pop() if self._hot else None
        hot = [queue for queue in self._weights if queue in self._hot]
        if not hot:
            return None
        for queue in hot:
            self._credit[queue] += self._weights[queue]
        chosen = max(hot, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[queue] for queue in hot)
        self._hot.discard(chosen)
        return chosen
