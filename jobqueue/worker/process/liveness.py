"""What the operating system knows of a process: enough to certify a neighbour's death.

Silence alone proves nothing. A certificate needs the same boot and the same pid and time
namespaces, and a kernel that says "no such process", or that this pid started at another time.
If anything cannot be read, the answer is unknown, and the lease decides.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from uuid import UUID

from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.notifications import Died, LeaderVacant, Message
from jobqueue.store import deaths
from jobqueue.store.connections import Session
from jobqueue.worker.hints import send_hint

PROC = Path("/proc")
CALL_SECONDS = 2.0
STAT_STATE, STAT_STARTED = 0, 19  # fields 3 and 22 of proc(5), counted after the command's name
log = get_logger()


class Life(StrEnum):
    """What is known about a process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Process(Protocol):
    """What a worker's row says about its process."""

    @property
    def pid(self) -> int: ...
    @property
    def pid_started(self) -> int | None: ...
    @property
    def pid_namespace(self) -> str: ...
    @property
    def time_namespace(self) -> str: ...
    @property
    def boot_id(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What its neighbours can learn about this process. Empty: not available here."""

    pid: int
    pid_started: int | None
    pid_namespace: str
    time_namespace: str
    boot_id: str


def identity(proc: Path = PROC) -> Facts:
    """Return the facts about this process, taken from its own /proc only."""
    own = _is_own(proc)
    return Facts(
        pid=os.getpid(),
        pid_started=_started(proc / "self") if own else None,
        pid_namespace=_link(proc / "self/ns/pid") if own else "",
        time_namespace=_link(proc / "self/ns/time") if own else "",
        boot_id=_text(proc / "sys/kernel/random/boot_id"),
    )


def certify(row: Process, proc: Path = PROC, kill: Callable[[int, int], object] = os.kill) -> Life:
    """Return whether the process of this row is certainly dead."""
    me = identity(proc)
    here = (me.boot_id, me.pid_namespace, me.time_namespace)
    if "" in here or me.pid_started is None or row.pid_started is None or row.pid <= 0:
        return Life.UNKNOWN
    if here != (row.boot_id, row.pid_namespace, row.time_namespace):
        return Life.UNKNOWN
    try:
        kill(row.pid, 0)
    except ProcessLookupError:
        return Life.DEAD
    except OSError:  # somebody else's process: not ours to judge
        return Life.UNKNOWN
    fields = _stat(proc / str(row.pid))
    if fields is None:
        return Life.UNKNOWN
    if int(fields[STAT_STARTED]) != row.pid_started:
        return Life.DEAD  # its pid has been given to another one
    # A zombie's first thread has ended, but other threads may still run.
    return Life.UNKNOWN if fields[STAT_STATE] in "ZXx" else Life.ALIVE


def _is_own(proc: Path) -> bool:
    """Whether this /proc is that of our own pid namespace."""
    return _link(proc / "self") == str(os.getpid())


def _started(directory: Path) -> int | None:
    fields = _stat(directory)
    return None if fields is None else int(fields[STAT_STARTED])


def _stat(directory: Path) -> list[str] | None:
    # The command's name stands in parentheses and may itself contain some.
    fields = _text(directory / "stat").rpartition(")")[2].split()
    good = len(fields) > STAT_STARTED and fields[STAT_STARTED].isdecimal()
    return fields if good else None


def _link(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


class DeadWorkerDetector:
    """Examines this machine's silent workers, and certifies their deaths.

    Called by the owner of the session whenever a beat shows silent neighbours.
    """

    def __init__(self, session: Session, me: UUID, settings: Settings) -> None:
        self.session, self.me, self.settings = session, me, settings

    @property
    def silence_seconds(self) -> float:
        """How long a worker must have been silent: one interval and the longest beat."""
        return self.settings.heartbeat_seconds + self.settings.beat_budget_seconds

    async def detect(self, seconds: float = 3 * CALL_SECONDS) -> int:
        """Certify what can be certified, notify the others, and return how many."""
        found = []
        silence = self.silence_seconds
        end = time.monotonic() + seconds
        for row in await self.session.call(deaths.silent, _left(end), self.me, silence):
            if certify(row) is not Life.DEAD:
                continue
            death = await self.session.call(deaths.certify, _left(end), row, silence)
            if death is not None:
                found.append(death)
                log.warning("worker_died", dead=str(row.id), pid=row.pid, led=death.led)
        if found and self.settings.notify:
            await send_hint(self.session, _left(end), announcements(found))
        return len(found)


def _left(end: float) -> float:
    return min(max(end - time.monotonic(), 0.0), CALL_SECONDS)


def announcements(found: Sequence[deaths.Death]) -> list[Message]:
    """What to notify the others of: the leader reclaims; if the dead one led, they elect."""
    messages: list[Message] = [Died(str(death.worker)) for death in found]
    if any(death.led for death in found):
        messages.append(LeaderVacant())
    return messages
