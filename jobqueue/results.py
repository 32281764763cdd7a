"""From a job's row to Django's TaskResult."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.tasks import TaskResult
from django.tasks.exceptions import TaskResultDoesNotExist

from jobqueue import task_results
from jobqueue.conf import settings
from jobqueue.models import Attempt, Job
from jobqueue.states import State
from jobqueue.tasks import UnknownTask, resolve

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
        declared = resolve(job.task)
    except UnknownTask as error:
        raise TaskResultDoesNotExist(f"Job {job.pk}: {error}") from error
    attempts, runs = list(attempts), job.state == State.RUNNING
    latest = attempts[-1].started_at if attempts else None
    return task_results.build(
        task_results.as_enqueued(
            declared,
            backend=job.backend,
            queue=job.queue,
            priority=job.priority,
            max_attempts=job.max_attempts,
            options=job.options,
        ),
        id=job.pk,
        state=job.state,
        args=job.args,
        kwargs=job.kwargs,
        backend=job.backend,
        enqueued_at=job.enqueued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=job.claimed_at if runs else latest,
        past=[
            task_results.Past(str(each.worker), each.error_class, each.traceback)
            for each in attempts
        ],
        holder=str(job.worker) if runs else None,
        value=job.result if job.state == State.SUCCEEDED else None,
    )
