"""The filters of a list of jobs: read from a URL, and written into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import TextField
from django.db.models.functions import Cast
from django.http import QueryDict
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.models import Worker
from jobqueue.operations import Selection
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
MOST_WORKERS = 1_000
# What else a list's URL may contain: where the page begins.
PLACES = frozenset({"after", "before"})
SHORT_ID = 8  # a worker's id as the pages print it: its last characters


class UnreadableFilterError(ValueError):
    """A restriction is not understood: ignoring it would select more jobs."""

    def __init__(self, faults: list[str], readable: Filters) -> None:
        super().__init__(" ".join(faults))
        self.faults, self.readable = faults, readable


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
    def read(cls, given: Mapping[str, str], places: frozenset[str] = frozenset()) -> Filters:
        """Parse a URL's query; the names of `places` may be in it too.

        Raises UnreadableFilterError, which names everything that is not understood.
        """
        names = {field.name for field in fields(cls)}
        faults = [
            gettext("There is no filter “%(name)s”.") % {"name": name[:LONGEST]}
            for name in given
            if name not in names | places
        ]
        values: dict[str, str] = {}
        for name in names & set(given):
            value = given[name].strip()
            many = isinstance(given, QueryDict) and len(given.getlist(name)) > 1
            if many or len(value) > LONGEST or not value.isprintable():
                faults.append(
                    gettext("The filter “%(name)s” must be one short text.") % {"name": name}
                )
            elif fault := _fault(name, value):
                faults.append(fault)
            else:
                values[name] = value
        filters = cls(**values)
        if faults:
            raise UnreadableFilterError(faults, filters)
        return filters

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    @property
    def query(self) -> str:
        """The URL's query string."""
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return urlencode([pair for pair in pairs if pair[1]])

    def having(self, **changes: str) -> Filters:
        return replace(self, **changes)

    @property
    def job_id(self) -> int | None:
        """The id that was searched for, if it is an id."""
        text = self.q.lstrip("#")
        good = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BIGINT_MAX
        return int(text) if good else None

    def tasks(self) -> list[str] | None:
        """The task paths that the filter and the search allow; None for all of them."""
        part = "" if self.job_id is not None else self.q.casefold()
        if self.task:
            return [self.task] if part in self.task.casefold() else []
        if not part:
            return None
        return [path for path in stats.tasks() if part in path.casefold()][:MOST_TASKS]

    @property
    def age_bound(self) -> tuple[bool, timedelta] | None:
        """(newer than?, than what)"""
        if not self.age:
            return None
        side, _, span = self.age.partition("-")
        return side == "under", timedelta(seconds=AGE_SECONDS[span])

    def selection(self, moment: datetime) -> Selection:
        """Every matching job, for actions. Raises UnreadableFilterError for a text search,
        which reads only a part."""
        if self.text:
            fault = gettext("A text search finds only a part: select the jobs that you mean.")
            raise UnreadableFilterError([fault], self)
        newer = older = None
        if bound := self.age_bound:
            since = moment - bound[1]
            newer, older = (since, None) if bound[0] else (None, since)
        retrying = self.state == stats.RETRYING
        return Selection(
            state=None if retrying else self.state or None,
            retrying=True if retrying else None,
            queue=self.queue or None,
            tasks=self.tasks(),
            tenant=self.tenant or None,
            workers=workers_of(self.worker) if self.worker else None,
            job=self.job_id,
            newer_than=newer,
            older_than=older,
        )

    def words(self) -> list[tuple[Promise | str, Promise | str]]:
        """The filter in words: (name, value)."""
        tasks = self.tasks() or []
        named: list[tuple[Promise | str, Promise | str]] = [
            (_("State"), TABS[self.state] if self.state else ""),
            (_("Queue"), self.queue),
            (_("Task"), self.task),
            (_("Tenant"), self.tenant),
            (_("Worker"), ", ".join(workers_of(self.worker)) if self.worker else ""),
            (_("Age"), AGES[self.age] if self.age else ""),
            (_("Id"), "" if self.job_id is None else str(self.job_id)),
            (
                _("Task contains “%(text)s”") % {"text": self.q},
                "" if self.job_id is not None or not self.q else ", ".join(tasks) or "-",
            ),
        ]
        return [(what, which) for what, which in named if which]


def workers_of(text: str) -> list[str]:
    """The ids of the workers with this id, this end of an id as the pages print it, or this
    name, which several may have had."""
    try:
        return [str(UUID(text))]
    except ValueError:
        pass
    rows = Worker.objects.using(settings().database)
    named = rows.filter(name=text)
    hostname, colon, pid = text.rpartition(":")
    if colon and pid.isascii() and pid.isdigit() and len(pid) < 10:
        named |= rows.filter(name="", hostname=hostname, pid=int(pid))
    found = [str(pk) for pk in named.order_by("pk").values_list("pk", flat=True)[:MOST_WORKERS]]
    if not found and len(text) == SHORT_ID:
        ends = rows.annotate(text=Cast("id", TextField())).filter(text__endswith=text.lower())
        found = [str(pk) for pk in ends.values_list("pk", flat=True)[:MOST_WORKERS]]
    return found


def _fault(name: str, value: str) -> str:
    """Why this value of a filter cannot be read; empty when it can."""
    if name == "state" and value not in TABS:
        return gettext("There is no state “%(value)s”.") % {"value": value}
    if name == "age" and value not in AGES:
        return gettext("There is no age “%(value)s”.") % {"value": value}
    if name == "worker" and value and not workers_of(value):
        return gettext("There is no worker “%(value)s”: enter its id, its end, or its name.") % {
            "value": value
        }
    return ""
