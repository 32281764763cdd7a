"""How lists of jobs are sorted, and the cursors from which their pages continue."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobqueue.insight import stats
from jobqueue.models import Job
from jobqueue.states import State
from jobqueue.versions import CLAIMABLE, READY_APART, SCHEDULED_APART, TIMED


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _number(value: Any) -> int:
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(value)
    return number


def _text(value: Any) -> str:
    text = str(value).replace("\0", "")
    text.encode()  # half a surrogate pair is refused
    return text


@dataclass(frozen=True, slots=True)
class Order:
    """How a tab is sorted: columns with their direction, unique together, backed by an index."""

    columns: tuple[tuple[str, bool, Callable[[Any], Any]], ...]  # name, descending, parser

    @property
    def clause(self) -> str:
        return ", ".join(f"{name} DESC" if down else name for name, down, _ in self.columns)

    @property
    def reversed(self) -> Order:
        return Order(tuple((name, not down, parse) for name, down, parse in self.columns))

    @property
    def after(self) -> str:
        """The rows after the cursor. The first term alone bounds the index scan."""
        first, down, _ = self.columns[0]
        terms, equal = [], ""
        for name, descending, _ in self.columns:
            terms.append(f"({equal}{name} {'<' if descending else '>'} %(after_{name})s)")
            equal += f"{name} = %(after_{name})s AND "
        return f"{first} {'<=' if down else '>='} %(after_{first})s AND ({' OR '.join(terms)})"

    def read(self, cursor: str) -> dict[str, Any]:
        """Return the cursor's parameters; none when it is empty or was tampered with."""
        try:
            values = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            return {
                f"after_{name}": parse(value)
                for (name, _, parse), value in zip(self.columns, values, strict=True)
            }
        except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError):
            return {}

    def write(self, job: Job) -> str:
        values = [getattr(job, name) for name, _, _ in self.columns]
        text = json.dumps([v.isoformat() if isinstance(v, datetime) else v for v in values])
        return base64.urlsafe_b64encode(text.encode()).decode()


_ID = ("id", False, _number)
NEWEST = Order((("id", True, _number),))
BY_END = Order((("finished_at", True, _moment), ("id", True, _number)))
BY_DUE = Order((("run_at", False, _moment), _ID))
BY_START = Order((("claimed_at", False, _moment), _ID))
BY_CLAIM = Order(
    (("queue", False, _text), ("priority", True, _number), ("run_at", False, _moment), _ID)
)
BY_ID = Order((_ID,))

# The conditions of a tab's rows, each with an index of its own; no row meets two of them.
TABS: dict[str, tuple[tuple[str, ...], Order]] = {
    "": (("TRUE",), NEWEST),
    State.SCHEDULED: ((TIMED, SCHEDULED_APART), BY_DUE),
    stats.RETRYING: (("state = 'SCHEDULED' AND failures > 0",), BY_DUE),
    State.READY: ((CLAIMABLE, READY_APART), BY_CLAIM),
    State.BLOCKED: (("state = 'BLOCKED'",), BY_ID),
    State.RUNNING: (("state = 'RUNNING'",), BY_START),
    State.SUCCEEDED: (("state = 'SUCCEEDED'",), BY_END),
    State.DEAD: (("state = 'DEAD'",), BY_END),
    State.CANCELLED: (("state = 'CANCELLED'",), BY_END),
}
