"""One job's history for its page: ready-made values for a template that only shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jobqueue import redact
from jobqueue.admin.actions import JobVerb
from jobqueue.admin.labels import BLOCKED_LOOP
from jobqueue.clock import database_time
from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.insight.why import Cause
from jobqueue.models import Attempt, Job, JobEvent, Worker
from jobqueue.states import FINAL, State
from jobqueue.stored_json import read_stored

ATTEMPTS_SHOWN = 50
EVENTS_SHOWN = 100
TEXT_SHOWN = 20_000  # of a message or traceback
# Larger values are not even read from the database.
VALUE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Shown:
    """A value as text, perhaps shortened, perhaps too large to show at all."""

    text: str
    cut: bool = False
    bytes: int = 0


@dataclass(slots=True)
class Story:
    """Everything that a job's page shows."""

    job: Job
    now: datetime
    args: Shown
    kwargs: Shown
    result: Shown | None
    worker: Worker | None
    timeline: list[Moment]
    blocked: list[Blocked]
    hidden_attempts: int
    hidden_events: bool
    verbs: list[JobVerb] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        return self.job.state in FINAL

    @property
    def cancelling(self) -> bool:
        return self.job.state == State.RUNNING and self.job.cancel_requested_at is not None

    @property
    def percent(self) -> float | None:
        """Its progress; None where that is not known."""
        return percent(self.job.progress)

    @property
    def lease_seconds(self) -> float | None:
        """How long the lease is still valid."""
        expires = self.job.lease_expires_at
        return None if expires is None else (expires - self.now).total_seconds()

    def context(self) -> dict[str, Any]:
        return {"story": self, "job": self.job, "now": self.now}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One entry of the history: an attempt or an action; neither for the running claim."""

    at: datetime
    attempt: Attempt | None = None
    event: JobEvent | None = None
    duration: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """One time when its handler blocked a worker's event loop, and where it did."""

    id: int
    at: datetime
    headline: str
    stack: str


def percent(progress: Any) -> float | None:
    """0 to 100, from whatever a handler reported."""
    if not isinstance(progress, dict):
        return None
    done, total = progress.get("done"), progress.get("total")
    good = all(isinstance(n, int | float) and not isinstance(n, bool) for n in (done, total))
    return round(min(max(100 * done / total, 0), 100), 1) if good and total else None  # type: ignore[operator]


VALUES = """
SELECT pg_column_size(args), pg_column_size(kwargs), COALESCE(pg_column_size(result), 0),
    CASE WHEN pg_column_size(args) <= %(most)s THEN args END,
    CASE WHEN pg_column_size(kwargs) <= %(most)s THEN kwargs END,
    CASE WHEN pg_column_size(result) <= %(most)s THEN result END,
    result IS NOT NULL, clock_timestamp()
FROM jobqueue_job WHERE id = %(id)s
"""


def load(pk: int) -> Story | None:
    """Read one job with its attempts and events; None when there is none."""
    if pk >= 2**63:
        return None
    alias = settings().database
    job = Job.objects.using(alias).defer(*stats.HEAVY).filter(pk=pk).first()
    if job is None:
        return None
    args, kwargs, result, now = _values(job)
    attempts = list(
        Attempt.objects.using(alias).filter(job=pk).order_by("-number")[:ATTEMPTS_SHOWN]
    )
    events = list(JobEvent.objects.using(alias).filter(job=pk).order_by("-at")[: EVENTS_SHOWN + 1])
    hidden_events = len(events) > EVENTS_SHOWN
    events = events[:EVENTS_SHOWN]
    _cover(job, attempts, events)
    blocked = [_take_stack(event) for event in events if event.kind == BLOCKED_LOOP]
    timeline = [
        Moment(at=a.started_at, attempt=a, duration=a.finished_at - a.started_at) for a in attempts
    ] + [Moment(at=e.at, event=e) for e in events]
    if job.claimed_at is not None:
        timeline.append(Moment(at=job.claimed_at))
    worker = Worker.objects.using(alias).filter(pk=job.worker).first() if job.worker else None
    return Story(
        job=job,
        now=now or database_time(),
        args=args,
        kwargs=kwargs,
        result=result,
        worker=worker,
        timeline=sorted(timeline, key=lambda moment: moment.at),
        blocked=blocked[::-1],
        hidden_attempts=max(job.attempts - len(attempts), 0),
        hidden_events=hidden_events,
    )


def _cover(job: Job, attempts: list[Attempt], events: list[JobEvent]) -> None:
    """Cover the secrets in every text that other code may have written."""
    job.progress = redact.cover(job.progress)
    job.cancel_reason = redact.cover_text(job.cancel_reason)
    for attempt in attempts:
        attempt.error_message = redact.cover_text(attempt.error_message)[:TEXT_SHOWN]
        attempt.traceback = redact.cover_text(attempt.traceback)[-TEXT_SHOWN:]
    for event in events:
        event.note = redact.cover_text(event.note)[:TEXT_SHOWN]


def _take_stack(event: JobEvent) -> Blocked:
    """Separate the stack from its headline; only the headline is in the timeline."""
    headline, _, stack = event.note.partition("\n")
    event.note = headline.removesuffix(" at:")
    return Blocked(event.pk, event.at, event.note, stack)


def _values(job: Job) -> tuple[Shown, Shown, Shown | None, datetime | None]:
    found = stats.rows(VALUES, {"id": job.pk, "most": VALUE_BYTES})
    if not found:
        return Shown(""), Shown(""), None, None
    sizes, texts, has_result, now = found[0][:3], found[0][3:6], found[0][6], found[0][7]
    args, kwargs, result = (None if text is None else read_stored(text) for text in texts)
    covered, covered_kwargs = redact.cover_arguments(
        [] if args is None else args, {} if kwargs is None else kwargs, job.signature
    )
    return (
        _shown(covered, sizes[0], missing=args is None),
        _shown(covered_kwargs, sizes[1], missing=kwargs is None),
        _shown(redact.cover(result), sizes[2], missing=result is None and sizes[2] > VALUE_BYTES)
        if has_result
        else None,
        now,
    )


def _shown(value: Any, size: int, *, missing: bool) -> Shown:
    if missing:
        return Shown("", cut=True, bytes=size)
    text, cut = redact.pretty(value)
    return Shown(text, cut, size)
