"""The claims that this process holds, by token. There is no other registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from jobqueue.context import Control
from jobqueue.states import Fate as Fate
from jobqueue.states import Stop as Stop
from jobqueue.store.claims import Claim
from jobqueue.store.finish import Ending, Written
from jobqueue.task_results import Past

if TYPE_CHECKING:
    from django.tasks import TaskResult

    from jobqueue.worker.outcomes.last_errors import LastError
    from jobqueue.worker.threads.handler_thread import HandlerThread

type TaskCallback = Callable[[asyncio.Task[Any]], None]


class Calls(Protocol):
    """What a handler has given to the loop's default executor: see `execution.default_executor`."""

    def submit(self, function: Callable[[], Any]) -> Future[Any]: ...
    def stop(self, why: Stop) -> None: ...
    def threads(self) -> list[HandlerThread]: ...
    async def outlast(self) -> None: ...


class InFlight:
    """One claim, from its round's answer until its fate is known and its handler has ended.

    An entry belongs to a claim, not to a job: when a lapsed job is claimed here again, the old
    entry and the new one exist side by side and do not affect each other. Other modules read its
    state; only the methods below change it.
    """

    __slots__ = (
        "_first_step_made",
        "_interrupt",
        "_stop_sent_at",
        "_timer",
        "blocked",
        "calls",
        "children",
        "claim",
        "committed",
        "control",
        "deadline",
        "ended",
        "fate",
        "handler_thread",
        "interrupt_raised",
        "interruptible",
        "last_error",
        "lost",
        "on_late_child",
        "past",
        "recorded",
        "recording",
        "released",
        "reported_at",
        "result",
        "started",
        "stop_reason",
        "stop_requested_at",
        "task",
        "trusted_from",
    )

    def __init__(self, claim: Claim, trusted_from: float) -> None:
        self.claim = claim
        self.trusted_from = trusted_from  # when the last good claim or renewal was sent
        self.control = Control()
        self.started = False
        self.ended = False  # the handler, and every call in its thread
        self.lost = False  # the database answered that the token is no longer ours
        self.released = False  # handed over to be written, although the handler has not ended
        self.fate: Fate | None = None
        self.stop_reason: Stop | None = None
        self.stop_requested_at = 0.0
        self._stop_sent_at = 0.0
        self.reported_at = -3600.0  # when it was last logged that it ignores the stop
        # How to interrupt this kind of handler, and how many seconds it has to clean up.
        self._interrupt: Callable[[Stop, float], None] | None = None
        self.interrupt_raised = False  # in the handler's thread
        self.interruptible = True
        self.task: asyncio.Task[None] | None = None
        self._first_step_made = False
        self.deadline: float | None = None  # for what runs now, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self.handler_thread: HandlerThread | None = None
        self.calls: Calls | None = None  # beside it, in threads of the default executor
        self.past: list[Past] = []  # its earlier attempts, if anything will read them
        # Made once the context or a signal asks for it.
        self.result: TaskResult[..., Any] | None = None
        self.recording: Ending | None = None  # for an atomic handler, once its statement was sent
        self.recorded: Written | None = None  # and the answer
        self.committed = False
        self.last_error: LastError | None = None  # that ends the job, where somebody hears of it
        self.blocked = ""  # its stack when it blocked the event loop
        self.children: set[asyncio.Task[Any]] | None = None
        # Takes over tasks that start after the handler has ended.
        self.on_late_child: TaskCallback | None = None

    @property
    def token(self) -> UUID:
        return self.claim.token

    @property
    def needs_lease(self) -> bool:
        """Whether its handler still acts under the lease. One that has committed no longer does:
        only its on_commit hooks are running."""
        return not (self.ended or self.committed)

    def mark_started(self, *, interruptible: bool = True) -> None:
        """The handler is about to be called."""
        self.started, self.interruptible = True, interruptible

    def mark_renewed(self, sent: float) -> None:
        """A beat sent at that moment has renewed the lease."""
        self.trusted_from = sent

    def mark_lost(self) -> None:
        """The database answered that no row has this token any more."""
        self.lost = True

    def mark_released(self) -> None:
        """Its release is handed over; whatever the handler returns later is dropped."""
        self.released = True

    def mark_recording(self, ending: Ending) -> None:
        """The atomic handler's own transaction is about to send this outcome."""
        self.recording = ending

    def mark_recorded(self, written: Written) -> None:
        """That statement was answered; the commit comes next."""
        self.recorded = written

    def mark_committed(self) -> None:
        """The atomic handler's transaction has committed."""
        self.committed = True

    def mark_blocked(self, stack: str) -> None:
        """The handler blocked the event loop, at this stack."""
        self.blocked = stack

    def mark_reported(self, now: float) -> None:
        """It was logged that the handler ignores its stop."""
        self.reported_at = now

    def mark_interrupt(self, *, raised: bool) -> None:
        """The interrupt was raised in the handler's thread, or the interpreter dropped it there."""
        self.interrupt_raised = raised

    def request_stop(self, why: Stop, now: float, cleanup_seconds: float) -> None:
        """Ask the handler to stop, once: a further request within `cleanup_seconds` is not
        delivered, so it cannot cut a clean-up short. The first reason stands. What has committed
        has succeeded: there is nothing left to stop."""
        if why is Stop.CANCEL:
            self.control.cancelled = True
        is_cleaning_up = self.stop_reason is not None and now - self._stop_sent_at < cleanup_seconds
        if self.ended or self.committed or is_cleaning_up:
            return
        if self.stop_reason is None:
            self.stop_reason, self.stop_requested_at = why, now
        self._stop_sent_at = now
        if self._interrupt is not None:
            self._interrupt(why, cleanup_seconds)
        if self.calls is not None:
            self.calls.stop(why)

    def interrupt_by(self, interrupt: Callable[[Stop, float], None] | None) -> None:
        """How to interrupt what runs now; None once it can no longer be interrupted."""
        self._interrupt = interrupt

    def attach_task(self, task: asyncio.Task[None] | None) -> None:
        """Record the asyncio task of the attempt."""
        self.task = task

    def attach_thread(self, thread: HandlerThread) -> HandlerThread:
        """Record the thread in which the handler, or its ORM calls, run."""
        self.handler_thread = thread
        return thread

    def detach_thread(self) -> HandlerThread | None:
        """Return its thread, which it no longer needs."""
        thread, self.handler_thread = self.handler_thread, None
        return thread

    def attach_calls(self, calls: Calls) -> None:
        """It has made its first call in the loop's default executor."""
        self.calls = calls

    def keep_past(self, past: list[Past]) -> None:
        """Keep its earlier attempts for the context and the signals."""
        self.past = past

    def keep_result(self, result: TaskResult[..., Any]) -> None:
        """Keep Django's TaskResult, made once for the context and the signals."""
        self.result = result

    def keep_error(self, error: LastError) -> None:
        """The exception that ends its job."""
        self.last_error = error

    def take_error(self) -> LastError | None:
        """Return that exception; it is not kept any more."""
        error, self.last_error = self.last_error, None
        return error

    def set_deadline(self, deadline: float | None, overdue: Callable[[], None]) -> None:
        """Limit what runs from now on. A short handler never needs the timer."""
        self.deadline = deadline
        if self._first_step_made:
            self._set_timer(overdue)

    def mark_first_step_made(self, overdue: Callable[[], None]) -> None:
        """The attempt has run up to its first wait."""
        self._first_step_made = True
        if not self.ended:
            self._set_timer(overdue)

    def _set_timer(self, overdue: Callable[[], None]) -> None:
        if self.deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(self.deadline, overdue)

    def cancel_timer(self) -> None:
        """What had the deadline has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def add_child(self, task: asyncio.Task[Any]) -> None:
        """Add a task that the handler started."""
        if self.on_late_child is not None:  # started by a task that outlived the handler
            self.on_late_child(task)
            return
        if self.children is None:
            self.children = set()
        self.children.add(task)
        task.add_done_callback(self.children.discard)

    def release_children(self, on_late_child: TaskCallback) -> list[asyncio.Task[Any]]:
        """The handler has ended: return the tasks that outlived it, and pass later ones on."""
        self.on_late_child = on_late_child
        left = [task for task in self.children or () if not task.done()]
        self.children = None
        return left


class InFlightJobs:
    """Every claim held here. A slot is free once the claim's fate is known and its handler has
    really ended, so the rows RUNNING here never outnumber the slots."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._by_token: dict[UUID, InFlight] = {}
        self.freed = asyncio.Event()  # set when a slot becomes free; cleared by the claimer
        self.counts = dict.fromkeys(Fate, 0)
        self.claimed = 0

    def __len__(self) -> int:
        return len(self._by_token)

    def __iter__(self) -> Iterator[InFlight]:
        return iter(list(self._by_token.values()))

    def get(self, token: UUID) -> InFlight | None:
        return self._by_token.get(token)

    @property
    def free(self) -> int:
        return self.concurrency - len(self._by_token)

    def add(self, claim: Claim, trusted_from: float) -> InFlight:
        """Called for every row of a round before anything is awaited, so that no pass that
        releases, renews or cancels can overlook it."""
        inflight = InFlight(claim, trusted_from)
        self._by_token[claim.token] = inflight
        self.claimed += 1
        return inflight

    def record_fate(self, inflight: InFlight, fate: Fate) -> None:
        """The outcome is written, refused or given up. Only the first call counts."""
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
            and self._by_token.pop(inflight.token, None) is not None
        ):
            self.freed.set()

    def renewable(self) -> list[InFlight]:
        """What a beat renews: every claim held, except those that the database called lost."""
        return [
            inflight
            for inflight in self._by_token.values()
            if inflight.fate is None and not inflight.lost
        ]
