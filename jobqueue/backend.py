"""The backend of Django's own tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.core.checks import CheckMessage
from django.tasks import Task, TaskResult
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import task_enqueued

from jobqueue import results, signals, task_results
from jobqueue.checks import check_backend
from jobqueue.conf import settings
from jobqueue.enqueueing.enqueue import insert
from jobqueue.enqueueing.job_row import draft
from jobqueue.enqueueing.task_options import validate
from jobqueue.states import State
from jobqueue.tasks import JobTask


class Door(BaseTaskBackend):
    """What all our backends accept and refuse, including those for tests."""

    task_class = JobTask

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.given_queues: object = params.get("QUEUES", [])
        if not isinstance(self.given_queues, list | tuple | set | frozenset):
            # A string would be read as one queue per letter; the checks refuse it.
            params = {**params, "QUEUES": []}
        super().__init__(alias, params)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise InvalidTask, naming the argument and what to write instead."""
        validate(task)
        if self.queues and task.queue_name not in self.queues:
            names = ", ".join(sorted(self.queues, key=str))
            raise InvalidTask(
                f"Queue {task.queue_name!r} is not valid for backend {self.alias!r}: write one of "
                f"its QUEUES ({names}), or add it to them."
            )
        super().validate_task(task)

    def check_call(
        self, task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the row that this call would make. Raises ArgumentsError, TypeError or
        InvalidTask."""
        self.validate_task(task)
        return draft(task, args, kwargs, settings(), self.alias)


class JobQueueBackend(Door):
    """Stores jobs in PostgreSQL, in the caller's transaction; `runworker` runs them."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    supports_metadata = True  # in Django versions whose Task has it

    def enqueue[**P, R](
        self, task: Task[P, R], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> TaskResult[P, R]:
        """Insert a job. Raises ArgumentsError, TypeError or InvalidTask before anything is sent."""
        stored = insert(self.check_call(task, args, kwargs))
        result: TaskResult[P, R] = task_results.build(
            task if task.backend == self.alias else replace(task, backend=self.alias),
            id=stored.id,
            state=State.READY,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            enqueued_at=stored.enqueued_at,
        )
        signals.send(task_enqueued, "task_enqueued", type(self), result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """Return the state of a job. Raises TaskResultDoesNotExist."""
        return results.load(result_id)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Django's own call: the checks of this app."""
        return check_backend(self)
