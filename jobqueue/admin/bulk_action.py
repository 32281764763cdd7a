"""A verb over all jobs that match a filter, as a job of its own: visible, stoppable, resumable."""

from __future__ import annotations

from datetime import datetime
from itertools import batched
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import QueryDict
from django.tasks import TaskContext, task, task_backends

from jobqueue import operations
from jobqueue.admin import perform
from jobqueue.admin.actions import VERBS
from jobqueue.admin.filters import Filters
from jobqueue.backend import JobQueueBackend
from jobqueue.conf import settings
from jobqueue.context import JobContext
from jobqueue.models import JobEvent

SLICE = 500
KIND = "bulk"


def _home() -> tuple[str, str]:
    """The alias and queue in which these jobs run: those of this app's first entry in TASKS."""
    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, JobQueueBackend):
            queues = sorted(backend.queues)
            return alias, "default" if not queues or "default" in queues else queues[0]
    raise ImproperlyConfigured("TASKS has no entry with jobqueue.backend.JobQueueBackend.")


ALIAS, QUEUE = _home()


@task(takes_context=True, backend=ALIAS, queue_name=QUEUE)
def run(
    context: TaskContext[Any, Any], verb: str, query: str, as_of: str, by: str, data: dict[str, Any]
) -> dict[str, Any]:
    """Work through the matching jobs in slices, each committed by itself.

    Only jobs that were there when it was asked for. Started again after a crash it goes on: what
    was changed already does not match any more, or is left alone.
    """
    job = cast(JobContext, context)
    chosen = VERBS[verb]
    moment = datetime.fromisoformat(as_of)
    filters = Filters.read(QueryDict(query))
    jobs = filters.queryset().filter(
        enqueued_at__lte=moment, state__in=[str(state) for state in chosen.states]
    )
    expected = perform.estimate(jobs)
    user = get_user_model()._default_manager.filter(**{_login_field(): by}).first()
    ids = jobs.exclude(pk=job.job_id).order_by("pk").values_list("pk", flat=True)
    total, done = operations.Result(verb=verb), 0
    for part in batched(ids.iterator(SLICE), SLICE, strict=False):
        job.raise_if_cancelled()
        with transaction.atomic(using=settings().database):
            result = chosen.run(part, data, by, moment)
            if user is not None:
                perform.log_jobs(user, result.ids, chosen, data.get("reason", ""))
        total, done = total + result, done + len(part)
        job.progress(done, max(expected, done), str(total))
    return {"changed": total.changed, "asked": total.asked, "left": dict(total.left)}


def _login_field() -> str:
    return str(get_user_model().USERNAME_FIELD)


def submit(
    *, verb: str, filters: Filters, as_of: datetime, by: str, data: dict[str, Any], nonce: str
) -> int:
    """Enqueue it once for each filled form, however often that is sent; return the job's id."""
    alias = settings().database
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [nonce])
        events = JobEvent.objects.using(alias).filter(kind=KIND, actor=by)
        sent = events.filter(note__endswith=f"[{nonce}]", at__gte=as_of).first() if nonce else None
        if sent is not None and sent.job is not None:
            return sent.job
        result = run.enqueue(verb, filters.query, as_of.isoformat(), by, data)
        note = f"{verb}: {filters.query or 'all'} [{nonce}]"
        JobEvent.objects.using(alias).create(job=int(result.id), kind=KIND, actor=by, note=note)
        return int(result.id)
