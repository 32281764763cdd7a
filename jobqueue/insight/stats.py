"""Read-only figures for pages, commands and metrics.

Nothing here counts the history: counts stop at a limit and become the planner's estimates,
and lists are read along an index. Ages are measured by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from jobqueue.conf import settings
from jobqueue.insight import stats_sql as sql
from jobqueue.models import Job, LeaderLease, Minute, Queue, Worker
from jobqueue.queue_names import listed
from jobqueue.states import Phase, State

COUNTED_AT_MOST = 10_000
# Not a state of its own: SCHEDULED after a failure.
RETRYING = "RETRYING"
# Columns that may hold a megabyte, and that no list shows.
HEAVY = ("args", "kwargs", "result", "options")


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are; an estimate if counting further would read too much."""

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
    workers: int  # running workers that serve it


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
    found = row(sql.COUNTS, {"limit": limit + 1})
    now, estimate, frequencies, counted = found[0], found[1], found[2] or {}, found[3:]
    states = {}
    for name, count in zip(_COUNTED, counted, strict=True):
        guess = int(estimate * float(frequencies.get(name, 0)))
        states[name] = Count(count) if count <= limit else Count(max(limit, guess), exact=False)
    exact = all(count.exact for count in states.values())
    whole = sum(count.value for name, count in states.items() if name != RETRYING)
    return Figures(now, Count(whole, exact), states)


SCHEDULED_SAMPLE = 2_000
WAITING_SAMPLE = 1_000  # jobs of each state whose tasks are looked at


def queues(limit: int = COUNTED_AT_MOST) -> list[QueueFigures]:
    """Every queue that has waiting or running jobs, a worker or a row, or is listed in TASKS.

    The first 100 by name.
    """
    parameters = {
        "limit": limit + 1,
        "sample": SCHEDULED_SAMPLE,
        "lease": settings().lease_seconds,
        "known": listed(),
    }
    found = []
    for name, ready, busy, scheduled, oldest, at, by, serving, more in rows(sql.QUEUES, parameters):
        waiting = Count(limit, exact=False) if ready > limit else Count(ready)
        later = Count(scheduled, exact=not more)
        found.append(QueueFigures(name, waiting, busy, later, oldest, at, by, serving))
    return found


def jobs() -> QuerySet[Job]:
    """Jobs on the queue's database without the columns that may be large."""
    return Job.objects.using(settings().database).defer(*HEAVY)


def running(limit: int = 20) -> list[Job]:
    """The running jobs, the longest first."""
    return list(jobs().filter(state=State.RUNNING).order_by("claimed_at")[:limit])


def retrying(limit: int = 10) -> list[Job]:
    """The jobs that failed and wait for a retry, the next first."""
    return list(jobs().filter(state=State.SCHEDULED, failures__gt=0).order_by("run_at")[:limit])


def dead(limit: int = 10) -> list[Job]:
    """The newest dead letters."""
    return list(jobs().filter(state=State.DEAD).order_by("-finished_at")[:limit])


def queue_names() -> list[str]:
    """The queues that have a row."""
    return list(Queue.objects.using(settings().database).values_list("name", flat=True)[:500])


def tasks() -> list[str]:
    """The dotted paths that jobs name."""
    return [task for (task,) in rows(sql.TASKS, {"waiting": WAITING_SAMPLE})]


def newer(limit: int = COUNTED_AT_MOST) -> tuple[Count, int]:
    """Waiting jobs that this code leaves alone, and the most that any of them needs."""
    count, needs = row(sql.NEWER_WAITING, {"limit": limit})
    return Count(count, exact=count < limit), needs or 0


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker process and the slots in use."""

    worker: Worker
    used: int
    silent_seconds: float
    alive: bool
    leads: bool


def workers(now: datetime, leader: LeaderLease | None, limit: int = 50) -> list[WorkerFigures]:
    """The workers that have not stopped, the last seen first."""
    alias = settings().database
    found = list(
        Worker.objects.using(alias)
        .exclude(phase=Phase.STOPPED)
        .filter(died_at=None)
        .order_by("-last_seen_at")[:limit]
    )
    used = dict(rows(sql.USED, {"workers": [worker.pk for worker in found]}))
    return [
        WorkerFigures(
            worker,
            used.get(worker.pk, 0),
            silent := max((now - worker.last_seen_at).total_seconds(), 0.0),
            silent < settings().lease_seconds,
            leader is not None and leader.holder == worker.pk,
        )
        for worker in found
    ]


def leader() -> LeaderLease | None:
    """The leader's lease, without a holder if nobody holds it, or if the workers do not believe
    what it says; None before the first election."""
    conf, alias = settings(), settings().database
    heard = Now() - timedelta(seconds=conf.lease_seconds)
    holder = Worker.objects.using(alias).filter(
        pk=OuterRef("holder"), died_at=None, last_seen_at__gt=heard
    )
    longest = Now() + 2 * timedelta(seconds=conf.leader_lease_seconds)
    leases = LeaderLease.objects.using(alias).filter(name="maintenance")
    held = leases.filter(Exists(holder), expires_at__gt=Now(), expires_at__lte=longest)
    found: LeaderLease | None = leases.annotate(is_held=Exists(held)).first()
    if found is not None and not found.is_held:  # type: ignore[attr-defined]
        found.holder = found.acquired_at = found.expires_at = None
    return found


def last_hour(now: datetime) -> Sequence[Minute]:
    """The minutes of the last hour, all queues together, the oldest first."""
    since = now - timedelta(hours=1, minutes=1)
    return list(
        Minute.objects.using(settings().database).filter(queue="", at__gte=since).order_by("at")
    )


def last_day(now: datetime) -> Sequence[Minute]:
    """Quarters of an hour of the last day; of their waits the worst minute's."""
    names = ("at", "succeeded", "dead", "cancelled", "failed", "wait_p50", "wait_p95")
    found = rows(sql.DAY, {"since": now - timedelta(days=1)})
    return [Minute(**dict(zip(names, values, strict=True))) for values in found]


def rows(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run one read-only statement on the queue's database."""
    with connections[settings().database].cursor() as cursor:
        cursor.execute(statement, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def row(statement: str, parameters: dict[str, Any]) -> tuple[Any, ...]:
    return rows(statement, parameters)[0]
