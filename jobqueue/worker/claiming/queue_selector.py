"""Which queue is asked next: only those that may hold something, in weighted turns."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class QueueSelector:
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
        chosen = self.among(self._hot)
        if chosen is not None:
            self._hot.discard(chosen)
        return chosen

    def among(self, queues: Collection[str]) -> str | None:
        """Return the one of these whose turn it is, and leave it as hot as it is."""
        if len(queues) < 2:
            return next(iter(queues), None)
        rivals = [queue for queue in self._weights if queue in queues]
        for queue in rivals:
            self._credit[queue] += self._weights[queue]
        chosen = max(rivals, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[queue] for queue in rivals)
        return chosen
