"""The one place where a TaskResult is made: Django's view of a job's row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, NamedTuple

from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils.module_loading import import_string

from jobqueue.conf import settings
from jobqueue.tasks import STATUS, UNSET, JobTask


class Past(NamedTuple):
    """An attempt that has ended, as a result shows it."""

    worker: str
    error_class: str
    traceback: str


def build[**P, R](
    task: Task[P, R],
    *,
    id: int | str,
    state: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    backend: str,
    enqueued_at: datetime | None,
    started_at: datetime | None = None,
    finished_at: datetime | None = None,
    last_attempted_at: datetime | None = None,
    past: Iterable[Past] = (),
    holder: str | None = None,
    value: Any = None,
) -> TaskResult[P, R]:
    """Return the result of a job. `past` are its ended attempts, oldest first; `holder` is the
    worker that runs it now."""
    past = list(past)
    result: TaskResult[P, R] = TaskResult(
        task=task,
        id=str(id),
        status=TaskResultStatus(STATUS[state]),  # type: ignore[index]
        enqueued_at=enqueued_at,
        started_at=started_at,
        finished_at=finished_at,
        last_attempted_at=last_attempted_at,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[
            TaskError(exception_class_path=p.error_class, traceback=p.traceback)
            for p in past
            if p.error_class
        ],
        worker_ids=[p.worker for p in past] + ([holder] if holder is not None else []),
    )
    object.__setattr__(result, "_return_value", value)
    return result


def as_enqueued(
    task: Task[..., Any],
    *,
    backend: str,
    queue: str,
    priority: int,
    max_attempts: int,
    options: Mapping[str, Any],
) -> Task[..., Any]:
    """Return the task with what the call and its row say. Not validated again: the settings may
    have changed since the enqueue."""
    changes: dict[str, Any] = {"priority": priority, "queue_name": queue, "backend": backend}
    known = {field.name for field in fields(task)}
    for name, stored in options.items():
        if name in known:
            changes[name] = read_option(name, stored)
    if isinstance(task, JobTask) and "max_attempts" not in changes:
        usual = settings().max_attempts if task.max_attempts is UNSET else task.max_attempts
        if max_attempts != usual:
            changes["max_attempts"] = max_attempts
    if all(getattr(task, name) == value for name, value in changes.items()):
        return task
    changed: Task[..., Any] = object.__new__(type(task))
    for name in known:
        object.__setattr__(changed, name, changes.get(name, getattr(task, name)))
    return changed


def read_option(name: str, stored: Any) -> Any:
    """Return an option as the call gave it: JSON knows neither moments nor functions."""
    if name == "run_after" and isinstance(stored, str):
        return datetime.fromisoformat(stored)
    if name == "backoff" and isinstance(stored, str):
        try:
            return import_string(stored)
        except ImportError:  # it was removed from the code since
            return stored
    return stored
