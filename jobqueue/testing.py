"""For tests of one's own tasks: contexts by hand, and backends that know this queue's options."""

from __future__ import annotations

from typing import Any

from django.tasks import Task
from django.tasks.backends.dummy import DummyBackend as DjangoDummyBackend
from django.tasks.backends.immediate import ImmediateBackend as DjangoImmediateBackend
from django.utils import timezone

from jobqueue import task_results
from jobqueue.context import JobContext
from jobqueue.enqueueing.task_options import validate
from jobqueue.states import State
from jobqueue.tasks import JobTask, check_arguments


def context_for(task: Task[..., Any], *args: Any, attempt: int = 1, **kwargs: Any) -> JobContext:
    """Return a context to call `task.func` with; its `control` is the worker's side.

    Raises TypeError when the task takes no context, or cannot be called with these arguments.
    """
    if not isinstance(task, Task) or not task.takes_context:
        raise TypeError(f"{task!r} takes no context: declare it with @task(takes_context=True).")
    check_arguments(task, args, kwargs)
    now = timezone.now()
    result = task_results.build(
        task,
        id=1,
        state=State.RUNNING,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        enqueued_at=now,
        started_at=now,
        last_attempted_at=now,
        past=[task_results.Past("test", "", "")] * (attempt - 1),
        holder="test",
    )
    return JobContext(task_result=result, number=attempt)


class _KnowsOptions:
    task_class: type[Task[..., Any]] = JobTask

    def validate_task(self, task: Task[..., Any]) -> None:
        validate(task)
        super().validate_task(task)  # type: ignore[misc]


class ImmediateBackend(_KnowsOptions, DjangoImmediateBackend):
    """Runs each job at the enqueue, in the same thread."""


class DummyBackend(_KnowsOptions, DjangoDummyBackend):
    """Keeps what was enqueued in `results` and runs nothing."""


__all__ = ["DummyBackend", "ImmediateBackend", "context_for"]
