"""For a project's tests: contexts for calling tasks, and backends with this queue's options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from traceback import format_exception
from typing import Any

from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.backends.dummy import DummyBackend as DjangoDummyBackend
from django.tasks.backends.immediate import ImmediateBackend as DjangoImmediateBackend
from django.tasks.base import TaskError
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone

from jobqueue import task_results
from jobqueue.backend import Door
from jobqueue.conf import settings
from jobqueue.context import JobContext
from jobqueue.payload import encode_result
from jobqueue.states import State
from jobqueue.tasks import check_arguments


def context_for(task: Task[..., Any], *args: Any, attempt: int = 1, **kwargs: Any) -> JobContext:
    """Return a context to call `task.func` with; the test plays the worker through its `control`.

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


class ImmediateBackend(Door, DjangoImmediateBackend):
    """Runs each job at the enqueue, in the same thread; refuses what the queue would refuse."""

    def enqueue[**P, R](
        self, task: Task[P, R], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> TaskResult[P, R]:
        row = self.check_call(task, args, kwargs)
        # As a worker reads them.
        return super().enqueue(task, json.loads(row["args"]), json.loads(row["kwargs"]))

    def _execute_task(self, task_result: TaskResult[..., Any]) -> None:
        """As Django's, but with our context and with the queue's rules for results."""
        change = partial(object.__setattr__, task_result)
        change("enqueued_at", timezone.now())
        task_enqueued.send(type(self), task_result=task_result)
        now = timezone.now()
        change("status", TaskResultStatus.RUNNING)
        change("started_at", now)
        change("last_attempted_at", now)
        task_result.worker_ids.append(self.worker_id)
        task_started.send(type(self), task_result=task_result)
        try:
            value = encode_result(_call(task_result), settings().result_max_bytes)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            kind = type(error)
            path = f"{kind.__module__}.{kind.__qualname__}"
            text = "".join(format_exception(error))
            task_result.errors.append(TaskError(exception_class_path=path, traceback=text))
            change("finished_at", timezone.now())
            change("status", TaskResultStatus.FAILED)
            # In here, where receivers can still see the exception.
            task_finished.send(type(self), task_result=task_result)
        else:
            change("_return_value", json.loads(value))
            change("finished_at", timezone.now())
            change("status", TaskResultStatus.SUCCESSFUL)
            task_finished.send(type(self), task_result=task_result)


def _call(task_result: TaskResult[..., Any]) -> Any:
    task, lead = task_result.task, ()
    if task.takes_context:
        lead = (JobContext(task_result=task_result),)  # type: ignore[assignment]
    return task.call(*lead, *task_result.args, **task_result.kwargs)


class DummyBackend(Door, DjangoDummyBackend):
    """Keeps what was enqueued in `results` and runs nothing; refuses what the queue would."""

    def enqueue[**P, R](
        self, task: Task[P, R], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> TaskResult[P, R]:
        row = self.check_call(task, args, kwargs)
        return super().enqueue(task, json.loads(row["args"]), json.loads(row["kwargs"]))


__all__ = ["DummyBackend", "ImmediateBackend", "context_for"]
