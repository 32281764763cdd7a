"""Where in each queue the next claim begins, so that it does not reread finished entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jobqueue.store.claims import Claim, Key

# A full scan that takes longer than this reads index entries of finished jobs: vacuum may not
# remove them while some other transaction is open.
SLOW_SECONDS = 0.004
# Full scans may then take this share of the time.
SHARE = 0.1


@dataclass(slots=True)
class Position:
    """How far the claims of one queue have come."""

    key: Key | None = None  # of the last claimed job
    full_scan_took: float = 0.0  # seconds, the latest one
    full_scan_at: float = 0.0  # until then claims begin at the key
    wants_full_scan: bool = False  # a job may be ready before the key


class Scan(NamedTuple):
    """Where one claim begins."""

    after: Key | None  # None: at the queue's start, a full scan
    known: Key | None  # the position at that moment


class ScanCursor:
    """Does nothing while full scans are quick. Otherwise a claim begins after the last claimed key.
    A full scan follows every poll and every more urgent job. Jobs that came back or were committed
    late are found by further full scans, which take a small share of the time."""

    def __init__(self) -> None:
        self._positions: dict[str, Position] = {}

    def request_full_scan(self, queue: str | None, priority: int | None = None) -> None:
        """A job may be ready before the position; with a priority only if that is higher."""
        positions = self._positions
        for position in (
            positions.values() if queue is None else filter(None, [positions.get(queue)])
        ):
            if priority is None or position.key is None or priority > position.key.priority:
                position.wants_full_scan = True

    def begin(self, queue: str, now: float) -> Scan:
        """Return where the next claim begins."""
        position = self._positions.setdefault(queue, Position())
        if position.wants_full_scan or now >= position.full_scan_at:
            position.wants_full_scan = False  # before the statement is sent, as for every wake
            return Scan(None, position.key)
        return Scan(position.key, position.key)

    def record(self, queue: str, scan: Scan, rows: Sequence[Claim], now: float) -> None:
        """Record a claim's answer. If another claim's answer came in between, the earlier of
        the two positions counts, so that no job is skipped."""
        position = self._positions[queue]
        if rows:
            key = rows[-1].key
            others = position.key if position.key != scan.known else None
            position.key = key if others is None else min(key, others, key=_place)
        if scan.after is None:
            if rows:
                position.full_scan_took = rows[-1].took
            slow = position.full_scan_took > SLOW_SECONDS
            position.full_scan_at = now + position.full_scan_took / SHARE if slow else 0.0

    def seconds_to_full_scan(self, queue: str, now: float) -> float:
        """Return the seconds until a full scan is due; zero or less: now."""
        position = self._positions.get(queue)
        return 0.0 if position is None else position.full_scan_at - now


def _place(key: Key) -> tuple[int, object, int]:
    return -key.priority, key.run_at, key.id
