"""Which queue to claim from next: weighted turns among those that may have ready jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jobqueue.conf import EVERY_QUEUE, EXCEPT

# Up to so many queues a poll claims from each of them; from then on it asks first which have jobs.
FEW_QUEUES = 4


class QueueSelector:
    """Smooth weighted round robin over the queues that may have ready jobs.

    A wake, a poll or a full round marks a queue ready, until a claim from it is sent. With `*`,
    names are added as they are found and forgotten when they are empty.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._further = weights.get(EVERY_QUEUE)  # the weight of each unnamed queue
        self._excluded = {name[1:] for name in weights if name.startswith(EXCEPT)}
        self._weights = {
            name: weight
            for name, weight in weights.items()
            if name != EVERY_QUEUE and not name.startswith(EXCEPT)
        }
        self._named = frozenset(self._weights)
        self._credit = dict.fromkeys(self._weights, 0)
        self._ready: set[str] = set()
        self._resting: set[str] = set()  # not asked for a moment; they keep their marks

    @property
    def serves_every(self) -> bool:
        """Whether unnamed queues are served."""
        return self._further is not None

    @property
    def is_many(self) -> bool:
        """Whether asking each queue costs more than asking which have jobs."""
        return self.serves_every or len(self._named) > FEW_QUEUES

    def serves(self, queue: str) -> bool:
        """Whether jobs of this queue run here."""
        return queue in self._weights or (self.serves_every and queue not in self._excluded)

    def mark_ready(self, queue: str | None) -> bool:
        """Mark one queue, or all; return whether this worker serves it."""
        if queue is None:
            self._ready.update(self._weights)
        elif queue in self._weights or self._admit(queue):
            self._ready.add(queue)
        else:
            return False
        return True

    def discover(self, queues: Collection[str]) -> None:
        """Only these queues have ready jobs: mark them and forget the other unnamed ones, or each
        poll would ask every name there has ever been."""
        for name in set(self._weights) - self._named - self._ready - set(queues):
            del self._weights[name], self._credit[name]
        for name in queues:
            self.mark_ready(name)

    def has_others(self, queue: str) -> bool:
        """Whether another queue than this one is to be asked now."""
        return not self._ready - self._resting <= {queue}

    def rest(self, queue: str) -> None:
        """Do not ask this queue until `end_rest`."""
        self._resting.add(queue)

    def end_rest(self, queue: str) -> bool:
        """Ask it again; return whether it was marked meanwhile."""
        self._resting.discard(queue)
        return queue in self._ready

    def _admit(self, queue: str) -> bool:
        if self._further is None or queue in self._excluded:
            return False
        self._weights[queue], self._credit[queue] = self._further, 0
        return True

    def next(self) -> str | None:
        """Return the queue whose turn it is and unmark it; None when no queue is ready."""
        chosen = self.choose(self._ready - self._resting if self._resting else self._ready)
        if chosen is not None:
            self._ready.discard(chosen)
        return chosen

    def choose(self, queues: Collection[str]) -> str | None:
        """Return the one of these whose turn it is; its mark stays."""
        if len(queues) < 2:
            return next(iter(queues), None)
        for queue in queues:
            if queue not in self._weights:  # forgotten since
                self._admit(queue)
        candidates = [queue for queue in self._weights if queue in queues]
        for queue in candidates:
            self._credit[queue] += self._weights[queue]
        chosen = max(candidates, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[queue] for queue in candidates)
        return chosen
