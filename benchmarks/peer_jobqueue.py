"""This queue as one more peer of a side-by-side harness: see docs/benchmarks.md.

Copied there as peers/jobqueue.py; runs in a virtual environment that has this package and Django.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import django
from common import DSN, ajob  # type: ignore[import-not-found]
from django.conf import settings

DISTS = ["django-jobqueue", "django", "psycopg"]
KIND = "Django's own tasks; psycopg3; finished jobs and their attempts are kept"
N = 20000
CONCS = {"best": [200]}
PROFILES = {
    "default": "manage.py runworker --concurrency C",
    "best": "the same with --concurrency 200",
}
COUNTS_SQL = """select count(*) filter (where state in ('SCHEDULED', 'READY', 'BLOCKED')),
 count(*) filter (where state = 'RUNNING'), count(*) filter (where state = 'SUCCEEDED'),
 count(*) filter (where state in ('DEAD', 'CANCELLED')) from jobqueue_job"""
CLAIM_LIKE = "%picked AS%"
CLONE_DONE = [
    """with j as (insert into jobqueue_job (task, args, state, attempts, finished_at, started_at)
    select 'peers.jobqueue.job', '[1, 0]', 'SUCCEEDED', 1, now(), now()
    from generate_series(1, %(n)s) returning id)
    insert into jobqueue_attempt (token, job_id, number, outcome, started_at, finished_at)
    select gen_random_uuid(), id, 1, 'SUCCEEDED', now(), now() from j"""
]
CLONE_PENDING = [
    """insert into jobqueue_job (task, args)
    select 'peers.jobqueue.job', '[1, 0]' from generate_series(1, %(n)s)"""
]

if not settings.configured:
    _url = urlsplit(DSN)
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": _url.path.lstrip("/"),
                "USER": _url.username,
                "HOST": _url.hostname,
                "PORT": _url.port,
            }
        },
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "jobqueue"],
        TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": ["default"]}},
        USE_TZ=True,
    )
    django.setup()

from django.core.management import call_command, execute_from_command_line  # noqa: E402
from django.tasks import task  # noqa: E402

import jobqueue  # noqa: E402


@task()
async def job(i: int, ms: int) -> None:
    await ajob(i, ms)


def setup() -> None:
    call_command("migrate", verbosity=0)


def enqueue_one(jobs: Iterable[Any], mark: Callable[[int], None], gap: float) -> None:
    for i, ms in jobs:
        job.enqueue(i, ms)
        mark(i)
        if gap:
            time.sleep(gap)


def enqueue_bulk(jobs: Iterable[Any]) -> None:
    jobqueue.enqueue_many((job, one) for one in jobs)


def worker(conc: int, profile: str) -> None:
    sys.argv = ["manage.py", "runworker", "--queues=default", f"--concurrency={conc}"]
    execute_from_command_line(sys.argv)
