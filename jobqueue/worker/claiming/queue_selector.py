"""Which queue is claimed from next: weighted turns among those that may have ready jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class QueueSelector:
    """Smooth weighted round robin over the queues that may have ready jobs.

    A queue is marked ready by a wake, a poll or a full round, until a claim from it is sent.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0)
        self._ready: set[str] = set()

    def mark_ready(self, queue: str | None) -> bool:
        """Mark one queue, or all; whether this worker serves it."""
        if queue is None:
            self._ready.update(self._weights)
        elif queue in self._weights:
            self._ready.add(queue)
        else:
            return False
        return True

    def next(self) -> str | None:
        """Return the queue whose turn it is and unmark it; None when no queue is ready."""
        chosen = self.choose(self._ready)
        if chosen is not None:
            self._ready.discard(chosen)
        return chosen

    def choose(self, queues: Collection[str]) -> str | None:
        """Return the one of these whose turn it is; its mark stays as it is."""
        if len(queues) < 2:
            return next(iter(queues), None)
        candidates = [queue for queue in self._weights if queue in queues]
        for queue in candidates:
            self._credit[queue] += self._weights[queue]
        chosen = max(candidates, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[queue] for queue in candidates)
        return chosen
