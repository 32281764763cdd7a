"""From a job's row to Django's TaskResult."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from django.tasks import Task, TaskResult
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist

from jobqueue.conf import settings
from jobqueue.models import Attempt, Job
from jobqueue.states import State
from jobqueue.tasks import STATUS, UnknownTask, resolve

BIGINT_MAX = 2**63 - 1


def load(result_id: str) -> TaskResult[..., Any]:
    """Return the result with this id. Raises TaskResultDoesNotExist."""
    text = str(result_id)
    job = None
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BIGINT_MAX:
        job = Job.objects.using(settings().database).filter(pk=int(text)).first()
    if job is None:
        raise TaskResultDoesNotExist(f"There is no job {text!r}: never enqueued, or pruned.")
    attempts = Attempt.objects.using(settings().database).filter(job=job.pk).order_by("number")
    return of_job(job, attempts)


def of_job(job: Job, attempts: Iterable[Attempt]) -> TaskResult[..., Any]:
    """Return the TaskResult of a job and its attempts, oldest first."""
    try:
        task = _as_enqueued(resolve(job.task), job)
    except UnknownTask as error:
        raise TaskResultDoesNotExist(f"Job {job.pk}: {error}") from error
    attempts = list(attempts)
    workers = [str(attempt.worker) for attempt in attempts]
    latest = attempts[-1].started_at if attempts else None
    if job.state == State.RUNNING:
        workers.append(str(job.worker))
        latest = job.claimed_at
    result: TaskResult[..., Any] = TaskResult(
        task=task,
        id=str(job.pk),
        status=STATUS[State(job.state)],
        enqueued_at=job.enqueued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=latest,
        args=job.args,
        kwargs=job.kwargs,
        backend=job.backend,
        errors=[
            TaskError(exception_class_path=a.error_class, traceback=a.traceback)
            for a in attempts
            if a.error_class
        ],
        worker_ids=workers,
    )
    if job.state == State.SUCCEEDED:
        object.__setattr__(result, "_return_value", job.result)
    return result


def _as_enqueued(task: Task[..., Any], job: Job) -> Task[..., Any]:
    changes: dict[str, Any] = {"priority": job.priority, "queue_name": job.queue}
    if job.backend != task.backend:
        changes["backend"] = job.backend
    try:
        return replace(task, **changes)
    except (
        InvalidTask,
        InvalidTaskBackend,
    ):  # the queue or the backend has left the settings since
        return task
