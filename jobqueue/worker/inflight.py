"""The claims that this process holds, keyed by token: the one registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobqueue.context import Control
from jobqueue.store.claims import Claim
from jobqueue.task_results import Past


class Stop(StrEnum):
    """Why a handler was told to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LEASE = "lease"  # lost, or it cannot be kept


class Fate(StrEnum):
    """In which count of the shutdown's accounting a claim ended. Each claim has exactly one."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    RETURNED = "returned"
    UNRECORDED = "unrecorded"


class InFlight:
    """One claim, from the answer of its round until its fate is known and its handler has ended.

    An entry belongs to a claim, not to a job: when a lapsed job is claimed here again, the old
    entry and the new one live side by side and cannot touch each other.
    """

    __slots__ = (
        "blocked",
        "children",
        "claim",
        "committed",
        "control",
        "deadline",
        "ended",
        "fate",
        "first_step_made",
        "handler_thread",
        "interrupt",
        "landed",
        "lost",
        "on_stray",
        "past",
        "recorded",
        "recording",
        "released",
        "result",
        "started",
        "task",
        "timer",
        "told",
        "told_at",
        "told_first_at",
        "trusted_from",
        "warned_at",
    )

    def __init__(self, claim: Claim, trusted_from: float) -> None:
        self.claim = claim
        self.trusted_from = trusted_from  # when the last good claim or renewal was sent
        self.control = Control()
        self.started = False
        self.ended = False  # the handler, and every call of its lane
        self.lost = False  # the database says that the token is no longer ours
        self.released = False  # handed over for writing although the handler has not ended
        self.fate: Fate | None = None
        self.told: Stop | None = None
        self.told_at = 0.0  # the last delivery
        self.told_first_at = 0.0
        self.warned_at = -3600.0
        # How this kind of handler is told, and how many seconds it has to clean up.
        self.interrupt: Callable[[Stop, float], None] | None = None
        self.landed = False  # an interrupt was raised in the handler's thread
        self.task: asyncio.Task[None] | None = None
        self.first_step_made = False
        self.deadline: float | None = None  # of what runs now, by the loop's clock
        self.timer: asyncio.TimerHandle | None = None
        self.handler_thread: Any = None
        self.past: list[Past] = []  # its earlier attempts, where somebody is shown them
        self.result: Any = None  # Django's TaskResult, once the context or a signal wants it
        self.recording: Any = None  # an atomic handler's ending, once its statement was sent
        self.recorded: Any = None  # and the answer
        self.committed = False
        self.blocked = ""  # the stack with which it blocked the event loop
        self.children: set[asyncio.Task[Any]] | None = None
        # Takes over the tasks that start when the handler has ended already.
        self.on_stray: Callable[[asyncio.Task[Any]], None] | None = None

    @property
    def token(self) -> UUID:
        return self.claim.token

    def stop(self, why: Stop, now: float, error_policy: float) -> None:
        """Tell the handler to stop, once: a further call within `patience` seconds is not
        delivered, so that it cannot cut a clean-up short. The first reason stays."""
        if why is Stop.CANCEL:
            self.control.cancelled = True
        if self.ended or (self.told is not None and now - self.told_at < error_policy):
            return
        if self.told is None:
            self.told, self.told_first_at = why, now
        self.told_at = now
        if self.interrupt is not None:
            self.interrupt(why, error_policy)


class InFlightJobs:
    """Every claim held here. A slot is free when the outcome's fate is known and the handler has
    really ended; so the rows that are RUNNING here never exceed the concurrency."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._held: dict[UUID, InFlight] = {}
        self.freed = asyncio.Event()  # a slot became free; cleared by the claimer
        self.counts = dict.fromkeys(Fate, 0)
        self.claimed = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[InFlight]:
        return iter(list(self._held.values()))

    def get(self, token: UUID) -> InFlight | None:
        return self._held.get(token)

    @property
    def free(self) -> int:
        return self.concurrency - len(self._held)

    def add(self, claim: Claim, trusted_from: float) -> InFlight:
        """Called for every row of a round before anything is awaited: no pass that releases,
        renews or cancels may overlook it."""
        inflight = InFlight(claim, trusted_from)
        self._held[claim.token] = inflight
        self.claimed += 1
        return inflight

    def settle(self, inflight: InFlight, fate: Fate) -> None:
        """The outcome is written, refused or given up. Said once; later calls change nothing."""
        if inflight.fate is None:
            inflight.fate = fate
            self.counts[fate] += 1
            self._drop_if_over(inflight)

    def end(self, inflight: InFlight) -> None:
        """The handler has really ended."""
        inflight.ended = True
        self._drop_if_over(inflight)

    def _drop_if_over(self, inflight: InFlight) -> None:
        if (
            inflight.ended
            and inflight.fate is not None
            and self._held.pop(inflight.token, None) is not None
        ):
            self.freed.set()

    def renewable(self) -> list[InFlight]:
        """What a beat renews: all that is held but what the database has called lost."""
        return [
            inflight
            for inflight in self._held.values()
            if inflight.fate is None and not inflight.lost
        ]

    def trusted_since(self) -> float | None:
        """The oldest send time among the claims whose handler may still act."""
        return min(
            (inflight.trusted_from for inflight in list(self._held.values()) if not inflight.ended),
            default=None,
        )
