"""Which jobs a bulk act means: stored with the order, the same for each slice, never wider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from django.db.models import Q, QuerySet

from jobqueue.conf import settings
from jobqueue.models import Job
from jobqueue.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Every field None: all jobs. Ages are moments, so that waiting does not widen them."""

    state: str | None = None
    retrying: bool | None = None
    queue: str | None = None
    tasks: list[str] | None = None
    tenant: str | None = None
    workers: list[str] | None = None
    job: int | None = None
    newer_than: datetime | None = None  # since its end, or since its enqueue
    older_than: datetime | None = None

    def stored(self) -> dict[str, Any]:
        """The form stored in an order's row."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if value is not None
        }

    @classmethod
    def read(cls, stored: Any) -> Self:
        """Read the stored form. Raises ValueError for anything not understood."""
        if not isinstance(stored, Mapping):
            raise ValueError("the filter is not an object")  # noqa: TRY004
        if unknown := sorted(set(stored) - _KINDS.keys()):
            raise ValueError(f"the filter has the unknown restriction {unknown[0]!r}")
        values = dict(stored)
        for name, value in values.items():
            if not _KINDS[name](value):
                raise ValueError(f"the filter's {name} cannot be read")
            if name in ("newer_than", "older_than"):
                values[name] = datetime.fromisoformat(value)
        return cls(**values)

    def queryset(self) -> QuerySet[Job]:
        """All matching jobs."""
        jobs = Job.objects.using(settings().database)
        for name, value in (("state", self.state), ("queue", self.queue), ("tenant", self.tenant)):
            if value is not None:
                jobs = jobs.filter(**{name: value})
        if self.retrying is not None:
            jobs = jobs.filter(state=State.SCHEDULED, failures__gt=0)
        if self.tasks is not None:
            jobs = jobs.filter(task__in=self.tasks)
        if self.workers is not None:
            jobs = jobs.filter(worker__in=self.workers)
        if self.job is not None:
            jobs = jobs.filter(pk=self.job)
        for way, bound in (("gte", self.newer_than), ("lt", self.older_than)):
            if bound is not None:
                ended = Q(**{f"finished_at__{way}": bound})
                waiting = Q(finished_at__isnull=True, **{f"enqueued_at__{way}": bound})
                jobs = jobs.filter(ended | waiting)
        return jobs


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_ids(value: Any) -> bool:
    try:
        return _are_texts(value) and all(str(UUID(text)) == text for text in value)
    except ValueError:
        return False


def _is_moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


_KINDS = {
    "state": lambda value: value in State,
    "retrying": lambda value: value is True,
    "queue": _is_text,
    "tasks": _are_texts,
    "tenant": _is_text,
    "workers": _are_ids,
    "job": lambda value: type(value) is int and 0 <= value < 2**63,
    "newer_than": _is_moment,
    "older_than": _is_moment,
}
