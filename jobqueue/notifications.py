"""The channel and the message kinds of NOTIFY: how each is built, and how a worker reads it.

A message is a hint and never the only carrier of a fact. Workers ignore what they do not
understand, so that versions can run side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

CHANNEL = "jobqueue"
END_OF_TIME = 253_402_300_800  # the year 10000, in epoch seconds; also keeps NaN out


@dataclass(frozen=True, slots=True)
class Ready:
    """Jobs of this queue (None: of any) can be claimed: claimers ask it.

    With a priority they are new.
    """

    queue: str | None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """This queue (None: any) is paused. No worker needs it, since each claim reads the queue's row;
    it is for listeners outside."""

    queue: str | None


@dataclass(frozen=True, slots=True)
class Resumed:
    """This queue (None: any) is no longer paused: claimers ask it."""

    queue: str | None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A job falls due at this moment, in epoch seconds: for the leader, who promotes."""

    at: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """A job that this worker (None: any) runs is to stop: its next heartbeat says which."""

    worker: str | None


@dataclass(frozen=True, slots=True)
class LeaderVacant:
    """Nobody leads: followers elect at once."""


@dataclass(frozen=True, slots=True)
class Died:
    """This worker's death is certified: the leader takes its jobs back."""

    worker: str | None


type Message = Ready | Paused | Resumed | Scheduled | Cancel | LeaderVacant | Died


def encode(message: Message) -> str:
    """Return the payload of a message."""
    return json.dumps(_fields(message))


def _fields(message: Message) -> dict[str, Any]:
    match message:
        case Ready(queue, None):
            return {"kind": "ready", "queue": queue}
        case Ready(queue, priority):
            return {"kind": "ready", "queue": queue, "priority": priority}
        case Paused(queue):
            return {"kind": "paused", "queue": queue}
        case Resumed(queue):
            return {"kind": "resumed", "queue": queue}
        case Scheduled(at):
            return {"kind": "scheduled", "at": at}
        case Cancel(worker):
            return {"kind": "cancel", "worker": worker}
        case LeaderVacant():
            return {"kind": "leader"}
        case Died(worker):
            return {"kind": "died", "worker": worker}


def parse(payload: str) -> Message | None:
    """Read a payload; None if it is not a message. Anyone may send anything."""
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    match fields:
        case {"kind": "ready", "queue": str(queue), "priority": int(priority)}:
            return Ready(queue, priority)
        case {"kind": "ready"}:
            return Ready(_text(fields.get("queue")))
        case {"kind": "paused"}:
            return Paused(_text(fields.get("queue")))
        case {"kind": "resumed"}:
            return Resumed(_text(fields.get("queue")))
        case {"kind": "scheduled", "at": int() | float() as at} if abs(at) < END_OF_TIME:
            return Scheduled(float(at))
        case {"kind": "cancel"}:
            return Cancel(_text(fields.get("worker")))
        case {"kind": "leader"}:
            return LeaderVacant()
        case {"kind": "died"}:
            return Died(_text(fields.get("worker")))
    return None


def ready(queues: Iterable[str]) -> list[Message]:
    """Return one message for each of these queues."""
    return [Ready(queue) for queue in sorted(queues)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
