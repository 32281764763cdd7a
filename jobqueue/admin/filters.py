"""What a list of jobs is filtered by: read from the address, and back into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.models import Job
from jobqueue.states import State

TABS = {
    "": _("All"),
    State.SCHEDULED: _("Scheduled"),
    State.READY: _("Ready"),
    State.RUNNING: _("Running"),
    stats.RETRYING: _("Retrying"),
    State.DEAD: _("Dead"),
    State.SUCCEEDED: _("Succeeded"),
    State.CANCELLED: _("Cancelled"),
    State.BLOCKED: _("Blocked"),
}
HOUR, DAY = 3600, 86400
# A final job's age counts from its end, another one's from its enqueue.
AGES = {
    "": _("any age"),
    "under-1h": _("newer than an hour"),
    "under-1d": _("newer than a day"),
    "under-7d": _("newer than a week"),
    "over-1h": _("older than an hour"),
    "over-1d": _("older than a day"),
    "over-7d": _("older than a week"),
}
AGE_SECONDS = {"1h": HOUR, "1d": DAY, "7d": 7 * DAY}
LONGEST = 200
BIGINT_MAX = 2**63 - 1
MOST_TASKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Every field empty: all jobs."""

    state: str = ""
    queue: str = ""
    task: str = ""
    tenant: str = ""
    worker: str = ""
    age: str = ""
    q: str = ""  # an id, or a part of a task's path
    text: str = ""  # in arguments and errors

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Filters:
        """Take what makes sense from an address; ignore the rest."""
        values = {
            field.name: given.get(field.name, "").replace("\0", "").strip()[:LONGEST]
            for field in fields(cls)
        }
        if values["state"] not in TABS:
            values["state"] = ""
        if values["age"] not in AGES:
            values["age"] = ""
        try:
            values["worker"] = str(UUID(values["worker"])) if values["worker"] else ""
        except ValueError:
            values["worker"] = ""
        return cls(**values)

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    @property
    def query(self) -> str:
        """The address's part after the question mark."""
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return urlencode([pair for pair in pairs if pair[1]])

    def having(self, **changes: str) -> Filters:
        return replace(self, **changes)

    @property
    def job_id(self) -> int | None:
        """The id that was searched for, if it is one."""
        text = self.q.lstrip("#")
        good = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BIGINT_MAX
        return int(text) if good else None

    def tasks(self) -> list[str] | None:
        """The paths that the filter and the search leave; None for all of them."""
        if self.task:
            return [self.task]
        if not self.q or self.job_id is not None:
            return None
        part = self.q.casefold()
        return [path for path in stats.tasks() if part in path.casefold()][:MOST_TASKS]

    @property
    def age_bound(self) -> tuple[bool, timedelta] | None:
        """(newer than?, than what)"""
        if not self.age:
            return None
        side, _, span = self.age.partition("-")
        return side == "under", timedelta(seconds=AGE_SECONDS[span])

    def queryset(self) -> QuerySet[Job]:
        """Every job that matches, for verbs. Text search is not a filter: it reads a part only."""
        jobs = Job.objects.using(settings().database)
        if self.state == stats.RETRYING:
            jobs = jobs.filter(state=State.SCHEDULED, failures__gt=0)
        elif self.state:
            jobs = jobs.filter(state=self.state)
        for name in ("queue", "tenant", "worker"):
            if value := getattr(self, name):
                jobs = jobs.filter(**{name: value})
        if (tasks := self.tasks()) is not None:
            jobs = jobs.filter(task__in=tasks)
        if self.job_id is not None:
            jobs = jobs.filter(pk=self.job_id)
        if bound := self.age_bound:
            newer, span = bound
            way = "gte" if newer else "lt"
            ended = Q(**{f"finished_at__{way}": Now() - span})
            waiting = Q(finished_at__isnull=True, **{f"enqueued_at__{way}": Now() - span})
            jobs = jobs.filter(ended | waiting)
        return jobs
