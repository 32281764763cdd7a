"""Read-only figures for pages, commands and metrics.

Nothing here counts the history: counts stop at a limit and give way to the planner's estimates,
lists are read off an index. Ages are measured by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.conf import settings
from jobqueue.models import Job, LeaderLease, Minute, Worker
from jobqueue.states import Phase, State

COUNTED_AT_MOST = 10_000
# Not a state of its own: SCHEDULED after a failure.
RETRYING = "RETRYING"
# Columns that may hold a megabyte, and that no list shows.
HEAVY = ("args", "kwargs", "result", "options", "signature")


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are; not exact where counting on would read too much."""

    value: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """One queue as it stands now."""

    name: str
    ready: Count
    running: int
    scheduled: Count
    oldest_seconds: float | None  # how long the longest waiting READY job has been due
    paused_at: datetime | None
    paused_by: str
    workers: int  # living workers that serve it


COUNTS = """
SELECT clock_timestamp(),
    (SELECT GREATEST(reltuples, 0) FROM pg_class WHERE oid = 'jobqueue_job'::regclass),
    (SELECT json_object(most_common_vals::text::text[], most_common_freqs::text[])
        FROM pg_stats WHERE schemaname = (SELECT relnamespace::regnamespace::text FROM pg_class
                                          WHERE oid = 'jobqueue_job'::regclass)
        AND tablename = 'jobqueue_job' AND attname = 'state'),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job WHERE state = 'SCHEDULED' LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job WHERE state = 'READY' LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job WHERE state = 'BLOCKED' LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job WHERE state = 'RUNNING' LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND state = 'SUCCEEDED'
        LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND state = 'DEAD'
        LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND state = 'CANCELLED'
        LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state = 'SCHEDULED' AND failures > 0 LIMIT %(limit)s) t)
"""
_COUNTED: tuple[str, ...] = (
    State.SCHEDULED,
    State.READY,
    State.BLOCKED,
    State.RUNNING,
    State.SUCCEEDED,
    State.DEAD,
    State.CANCELLED,
    RETRYING,
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Jobs by state, at this moment of the database's clock."""

    now: datetime
    total: Count
    states: Mapping[str, Count]


def figures(limit: int = COUNTED_AT_MOST) -> Figures:
    """Count each state up to the limit; beyond it, estimate."""
    row = _row(COUNTS, {"limit": limit + 1})
    now, estimate, frequencies, counted = row[0], row[1], row[2] or {}, row[3:]
    states = {}
    for name, count in zip(_COUNTED, counted, strict=True):
        guess = int(estimate * float(frequencies.get(name, 0)))
        states[name] = Count(count) if count <= limit else Count(max(limit, guess), exact=False)
    exact = all(count.exact for count in states.values())
    whole = sum(count.value for name, count in states.items() if name != RETRYING)
    return Figures(now, Count(whole, exact), states)


# Walks from one queue to the next by the index, and within it from one priority to the next: the
# first of each priority is its oldest.
QUEUES = """
WITH RECURSIVE ready_queue(name) AS (
    (SELECT queue FROM jobqueue_job WHERE state = 'READY' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM jobqueue_job WHERE state = 'READY' AND queue > q.name
            ORDER BY queue LIMIT 1)
    FROM ready_queue q WHERE q.name IS NOT NULL
), running AS (
    SELECT queue AS name, count(*) AS running
    FROM (SELECT queue FROM jobqueue_job WHERE state = 'RUNNING' LIMIT %(limit)s) t GROUP BY queue
), scheduled AS (
    SELECT queue AS name, count(*) AS scheduled
    FROM (SELECT queue FROM jobqueue_job WHERE state = 'SCHEDULED' ORDER BY run_at
          LIMIT %(sample)s) t
    GROUP BY queue
), served AS (
    SELECT name, count(*) AS workers
    FROM (SELECT queues FROM jobqueue_worker
          WHERE phase = 'RUNNING' AND died_at IS NULL
            AND last_seen_at > clock_timestamp() - %(lease)s * interval '1 second'
          ORDER BY last_seen_at DESC LIMIT 1000) w
    CROSS JOIN LATERAL jsonb_array_elements_text(w.queues) AS name
    GROUP BY name
), every AS (
    SELECT name FROM ready_queue WHERE name IS NOT NULL
    UNION SELECT name FROM running UNION SELECT name FROM scheduled UNION SELECT name FROM served
    UNION SELECT name FROM jobqueue_queue UNION SELECT unnest(%(known)s::text[])
)
SELECT e.name,
    (SELECT count(*) FROM (SELECT FROM jobqueue_job j WHERE j.state = 'READY' AND j.queue = e.name
                           LIMIT %(limit)s) t),
    COALESCE(r.running, 0), COALESCE(s.scheduled, 0), EXTRACT(EPOCH FROM clock_timestamp() - (
        WITH RECURSIVE head(priority, run_at) AS (
            (SELECT priority, run_at FROM jobqueue_job WHERE state = 'READY' AND queue = e.name
             ORDER BY priority DESC, run_at LIMIT 1)
            UNION ALL
            SELECT n.priority, n.run_at FROM head h CROSS JOIN LATERAL (
                SELECT priority, run_at FROM jobqueue_job
                WHERE state = 'READY' AND queue = e.name AND priority < h.priority
                ORDER BY priority DESC, run_at LIMIT 1) n
        ) SELECT min(run_at) FROM head))::double precision,
    q.paused_at, COALESCE(q.paused_by, ''), COALESCE(w.workers, 0),
    (SELECT count(*) FROM scheduled) > 0
        AND (SELECT sum(scheduled) FROM scheduled) >= %(sample)s
FROM every e
LEFT JOIN running r USING (name) LEFT JOIN scheduled s USING (name)
LEFT JOIN jobqueue_queue q USING (name) LEFT JOIN served w USING (name)
ORDER BY e.name
LIMIT 500
"""
SCHEDULED_SAMPLE = 2_000


def queues(limit: int = COUNTED_AT_MOST) -> list[QueueFigures]:
    """Every queue that has waiting or running jobs, a worker, a row, or stands in TASKS."""
    parameters = {
        "limit": limit + 1,
        "sample": SCHEDULED_SAMPLE,
        "lease": settings().lease_seconds,
        "known": configured_queues(),
    }
    found = []
    for name, ready, running, scheduled, oldest, at, by, workers, more in _rows(QUEUES, parameters):
        waiting = Count(limit, exact=False) if ready > limit else Count(ready)
        later = Count(scheduled, exact=not more)
        found.append(QueueFigures(name, waiting, running, later, oldest, at, by, workers))
    return found


def configured_queues() -> list[str]:
    """The queues of this app's entries of TASKS, without connecting to anything."""
    from django.tasks import task_backends

    from jobqueue.backend import JobQueueBackend

    names: set[str] = set()
    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, JobQueueBackend):
            names.update(backend.queues)
    return sorted(names)


def jobs() -> QuerySet[Job]:
    """Jobs on the queue's database without the columns that may be large."""
    return Job.objects.using(settings().database).defer(*HEAVY)


def running(limit: int = 20) -> list[Job]:
    """What runs now, the longest first."""
    return list(jobs().filter(state=State.RUNNING).order_by("claimed_at")[:limit])


def retrying(limit: int = 10) -> list[Job]:
    """What was tried and failed and is due next."""
    return list(jobs().filter(state=State.SCHEDULED, failures__gt=0).order_by("run_at")[:limit])


def dead(limit: int = 10) -> list[Job]:
    """The newest dead letters."""
    return list(jobs().filter(state=State.DEAD).order_by("-finished_at")[:limit])


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker process and the slots that it uses."""

    worker: Worker
    used: int
    silent_seconds: float
    alive: bool
    leads: bool


def workers(now: datetime, leader: LeaderLease | None, limit: int = 50) -> list[WorkerFigures]:
    """The workers that have not stopped, last seen first."""
    alias = settings().database
    rows = list(
        Worker.objects.using(alias)
        .exclude(phase=Phase.STOPPED)
        .filter(died_at=None)
        .order_by("-last_seen_at")[:limit]
    )
    used = dict(_rows(USED, {"workers": [worker.pk for worker in rows]}))
    return [
        WorkerFigures(
            worker,
            used.get(worker.pk, 0),
            silent := max((now - worker.last_seen_at).total_seconds(), 0.0),
            silent < settings().lease_seconds,
            leader is not None and leader.holder == worker.pk,
        )
        for worker in rows
    ]


USED = """
SELECT worker, count(*)::int FROM jobqueue_job
WHERE state = 'RUNNING' AND worker = ANY(%(workers)s::uuid[])
GROUP BY worker
"""


def leader() -> LeaderLease | None:
    """The leader's lease, also when nobody holds it; None before the first election."""
    return LeaderLease.objects.using(settings().database).filter(name="maintenance").first()


def last_hour(now: datetime) -> Sequence[Minute]:
    """The minutes of the last hour, all queues together, the oldest first."""
    since = now - timedelta(hours=1, minutes=1)
    return list(
        Minute.objects.using(settings().database).filter(queue="", at__gte=since).order_by("at")
    )


DAY = """
SELECT date_bin('15 minutes', at, '2000-01-01'::timestamptz), sum(succeeded)::int, sum(dead)::int,
    sum(cancelled)::int, sum(failed)::int, max(wait_p50), max(wait_p95)
FROM jobqueue_minute
WHERE queue = '' AND at >= %(since)s
GROUP BY 1 ORDER BY 1
"""


def last_day(now: datetime) -> Sequence[Minute]:
    """Quarters of an hour of the last day; of their waits the worst minute's."""
    names = ("at", "succeeded", "dead", "cancelled", "failed", "wait_p50", "wait_p95")
    rows = _rows(DAY, {"since": now - timedelta(days=1)})
    return [Minute(**dict(zip(names, row, strict=True))) for row in rows]


def _rows(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connections[settings().database].cursor() as cursor:
        cursor.execute(statement, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _row(statement: str, parameters: dict[str, Any]) -> tuple[Any, ...]:
    return _rows(statement, parameters)[0]
