"""Outcomes that are not written yet, and which of them are next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from uuid import UUID

from jobqueue.clock import loop_time
from jobqueue.store.finish import Ending
from jobqueue.store.finish_and_claim import can_exchange
from jobqueue.worker.inflight import InFlight

BATCH, BATCH_BYTES = 500, 4 * 1024 * 1024
BUSY_SECONDS, BUSY_MAX_SECONDS = 0.02, 1.0


@dataclass(slots=True)
class Waiting:
    """One outcome on its way to the database."""

    inflight: InFlight
    ending: Ending
    not_before: float = 0.0
    busy: float = BUSY_SECONDS
    replaced: bool = False  # the database refused the outcome; this replaces it
    is_sent: bool = False  # a statement with it is in flight
    lent: bool = False  # at most once: after a failure with a claim it is written by itself

    def put_off(self) -> None:
        """Its row is locked: try again, a little later each time."""
        self.not_before = loop_time() + self.busy
        self.busy = min(2 * self.busy, BUSY_MAX_SECONDS)


class PendingOutcomes:
    """Keyed by token, in the order in which the attempts ended."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(list(self._waiting.values()))

    def get(self, token: UUID) -> Waiting | None:
        return self._waiting.get(token)

    def put(self, inflight: InFlight, ending: Ending) -> None:
        self._waiting[inflight.token] = Waiting(inflight, ending)

    def remove(self, token: UUID) -> Waiting | None:
        """Remove and return one; None if it is no longer there."""
        return self._waiting.pop(token, None)

    @property
    def next(self) -> float:
        """When the next one may be sent (the loop's clock); infinity if none is waiting."""
        moments = (w.not_before for w in self._waiting.values() if not w.is_sent)
        return min(moments, default=inf)

    def batch(self) -> list[Waiting]:
        """Return what may be sent now, as much as one statement should carry."""
        now, size = loop_time(), 0
        batch: list[Waiting] = []
        for waiting in self._waiting.values():
            if waiting.not_before > now or waiting.is_sent:
                continue
            size += len(waiting.ending.result or "") + len(waiting.ending.traceback)
            if batch and (len(batch) >= BATCH or size > BATCH_BYTES):
                break
            batch.append(waiting)
        return batch

    @property
    def sent_count(self) -> int:
        """How many slots are about to be free: their outcomes are being written now."""
        return sum(w.is_sent and not w.lent for w in self._waiting.values())

    def lendable(self, most: int) -> Sequence[Waiting]:
        """Return what a claim can write along with it, taking over the slots."""
        return [waiting for waiting in self.batch() if _is_lendable(waiting)][:most]

    def lend(self, most: int) -> Sequence[Waiting]:
        """Hand those over; the completer's `apply_answers` or `mark_unsent` takes them back."""
        batch = self.lendable(most)
        for waiting in batch:
            waiting.is_sent = waiting.lent = True
        return batch


def _is_lendable(waiting: Waiting) -> bool:
    inflight = waiting.inflight
    if waiting.lent or inflight.claim.suspect:  # its end clears more than a success does
        return False
    return inflight.ended and can_exchange(waiting.ending)
