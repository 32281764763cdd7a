"""What a handler sees of its own job."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from django.tasks import TaskContext

from jobqueue.conf import settings
from jobqueue.exceptions import JobCancelled
from jobqueue.payload import encode

# The job that is running here: the parent of the jobs that it enqueues.
current_job: ContextVar[int | None] = ContextVar("jobqueue_current_job", default=None)


class Control:
    """What the worker and the handler share.

    Plain attributes: each is written by one side and read by the other, from any thread.
    """

    __slots__ = (
        "cancelled",
        "noted",
        "on_progress",
        "progress",
        "progress_number",
        "seen",
        "stopping",
    )

    def __init__(self, on_progress: Callable[[], None] | None = None) -> None:
        self.cancelled = False
        self.seen = False  # the handler has checked, and knows of the cancel
        self.stopping = False
        self.progress: str | None = None  # the latest, as JSON
        self.progress_number = 0
        self.noted = False  # the worker was notified of progress that it has not read yet
        self.on_progress = on_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(TaskContext):  # type: ignore[type-arg, misc]  # generic, not frozen in the stubs
    """The first argument of a task with `takes_context=True`."""

    control: Control = field(default_factory=Control, repr=False)
    number: int = 1

    @property
    def job_id(self) -> int | str:
        """The job's primary key; under ImmediateBackend the result's random id."""
        text = self.task_result.id
        return int(text) if text.isdecimal() else text

    @property
    def attempt(self) -> int:
        """1 for the first attempt, also counting those that were interrupted or snoozed."""
        return self.number

    @property
    def key(self) -> str:
        """The same string in every attempt of this job: an idempotency key for calls elsewhere."""
        return f"jobqueue-{self.task_result.id}"

    @property
    def is_cancelled(self) -> bool:
        """Whether an operator has cancelled this job. Cheap, from any thread."""
        if self.control.cancelled:
            self.control.seen = True
        return self.control.cancelled

    @property
    def is_stopping(self) -> bool:
        """Whether the worker drains: finish soon, or raise Snooze(0); not a cancel."""
        return self.control.stopping

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled when an operator has cancelled this job."""
        if self.is_cancelled:
            raise JobCancelled("the handler saw the cancel request")

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the job is. Cheap; the worker stores the latest at most twice a second.

        Raises NotJSON (a ValueError) if it is larger than PROGRESS_MAX_BYTES.
        """
        number = self.control.progress_number + 1
        value: dict[str, Any] = {"done": done, "total": total, "note": note, "number": number}
        limit = settings().progress_max_bytes
        self.control.progress = encode(value, "progress", limit, "PROGRESS_MAX_BYTES")
        self.control.progress_number = number
        if self.control.on_progress and not self.control.noted:
            self.control.noted = True
            self.control.on_progress()
