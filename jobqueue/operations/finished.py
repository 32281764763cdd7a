"""Django's `task_finished` for jobs that no handler has ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import batched, chain

from django.tasks import TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_finished

from jobqueue import signals
from jobqueue.backend import JobQueueBackend
from jobqueue.conf import settings
from jobqueue.exceptions import JobExpired, WorkerLost, as_handled
from jobqueue.models import Job
from jobqueue.redact import cover_text
from jobqueue.results import of_job
from jobqueue.states import FINAL, Reason
from jobqueue.tasks import UnknownTask

django_log = logging.getLogger("django.tasks")
LINE = "Task id=%s path=%s state=%s"  # as Django's own receiver writes it


def send_task_finished(ids: Sequence[int]) -> None:
    """Send the signal for jobs that ended while no worker held them: cancelled by an operator, or
    ended by the leader."""
    jobs = Job.objects.using(settings().database).filter(state__in=FINAL)
    for job in chain.from_iterable(  # few at a time: each may hold a megabyte of arguments
        jobs.filter(pk__in=some) for some in batched(ids, 50, strict=False)
    ):
        error = _ended_by(job)
        try:
            result = of_job(job, job.attempt_set.order_by("number"))
        except TaskResultDoesNotExist:  # this code does not know the task: only Django's line
            if error is not None:
                values = (job.pk, job.task, TaskResultStatus.FAILED)
                django_log.log(logging.ERROR, LINE, *values, exc_info=error)
            continue
        send = partial(signals.send, task_finished, "task_finished", JobQueueBackend, result)
        if error is None:
            send()
        else:
            as_handled(error, send)


def _ended_by(job: Job) -> Exception | None:
    """What stands for the exception of such a job."""
    if job.reason.startswith(Reason.WORKER_LOST):  # perhaps with the jobs that were lost with it
        return WorkerLost()
    match job.reason:
        case Reason.EXPIRED:
            return JobExpired()
        case Reason.UNKNOWN_TASK:
            return UnknownTask(cover_text(job.last_error) or job.task)
    return None
