"""Where in each queue the next claim may begin, so that it need not read what is over again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jobqueue.store.claims import Claim, Key

# A claim from the very start that takes longer than this reads entries of jobs long done: vacuum
# may not remove them while some other transaction is open.
SLOW_SECONDS = 0.004
# Looks from the very start may then take this part of the time.
SHARE = 0.1


@dataclass(slots=True)
class Mark:
    """Of one queue."""

    key: Key | None = None  # of the last job that was claimed
    took: float = 0.0  # seconds, the latest look from the very start
    rest_until: float = 0.0  # until when claims begin at the key
    urgent: bool = False  # something may wait before the key


class Begun(NamedTuple):
    """Of one claim."""

    after: Key | None  # it begins behind this key; None: at the very start
    known: Key | None  # the mark at that moment


class ScanCursor:
    """Off while looks from the very start are quick. Else claims begin behind the last key seen,
    and look from the very start at every poll, for whatever is more urgent, and otherwise as often
    as that stays a small share of the time: for jobs that came back, or were committed late."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def look(self, queue: str | None, priority: int | None = None) -> None:
        """Something may be ready before the mark; with a priority only if that is higher."""
        cursor = self._marks.values() if queue is None else filter(None, [self._marks.get(queue)])
        for mark in cursor:
            if priority is None or mark.key is None or priority > mark.key.priority:
                mark.urgent = True

    def begin(self, queue: str, now: float) -> Begun:
        """Return where the next claim begins."""
        mark = self._marks.setdefault(queue, Mark())
        if mark.urgent or now >= mark.rest_until:
            mark.urgent = False  # before the statement is sent, as with every wake
            return Begun(None, mark.key)
        return Begun(mark.key, mark.key)

    def seen(self, queue: str, begun: Begun, rows: Sequence[Claim], now: float) -> None:
        """Remember a claim's answer. Where another one has come meanwhile, the mark does not go
        beyond what both have seen: one of them may have looked from the very start."""
        mark = self._marks[queue]
        if rows:
            key = rows[-1].key
            others = mark.key if mark.key != begun.known else None
            mark.key = key if others is None else min(key, others, key=_place)
        if begun.after is None:
            if rows:
                mark.took = rows[-1].took
            slow = mark.took > SLOW_SECONDS
            mark.rest_until = now + mark.took / SHARE if slow else 0.0

    def rest(self, queue: str, now: float) -> float:
        """Return the seconds until a look from the very start is due; zero or less: at any time."""
        mark = self._marks.get(queue)
        return 0.0 if mark is None else mark.rest_until - now


def _place(key: Key) -> tuple[int, object, int]:
    return -key.priority, key.run_at, key.id
