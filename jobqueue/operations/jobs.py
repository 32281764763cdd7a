"""The operator's verbs: what an admin, a command or the project's code may do to jobs.

Each guards by the old state in its WHERE clause, is harmless when repeated, leaves an event for
every job that it changed, and says how many it left alone and why. A queryset is worked through in
batches, each committed by itself (unless a transaction is open already).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import batched
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet
from django.tasks import TaskResult

from jobqueue import queue_names
from jobqueue.conf import settings
from jobqueue.logs import get_logger
from jobqueue.models import Job
from jobqueue.notifications import Cancel, Ready
from jobqueue.notify import notify
from jobqueue.operations import sql
from jobqueue.operations.finished import send_task_finished
from jobqueue.states import WAITING, State, Verb

type One = Job | TaskResult[..., Any] | int | str  # a text: the id that an enqueue returns
type Jobs = One | QuerySet[Job] | Iterable[One]

BATCH = 500
KEPT_IDS = 10_000
MIN_ID = -(2**63)
DEADLOCK, SERIALIZATION = "40P01", "40001"
TRIES = 5
log = get_logger()

# Why a job was left alone, where its state alone does not say it.
MISSING = "MISSING"  # no such job: never there, or pruned
ASKED = "ASKED"  # a cancel was asked for already
HELD = "HELD"  # its old process may still be running it
SAME = "SAME"  # it is so already
LATER = "LATER"  # it ended again after the moment that the caller looked at
NEWER = "NEWER"  # this code does not understand all that it needs: see `jobqueue.versions`


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a verb did: how many jobs it changed, how many it left alone, and why.

    ids: the changed ones, in order, at most KEPT_IDS of them.
    asked: of the changed ones, those still RUNNING that were asked to stop.
    left: reason to count; a reason is the state that forbade it, or one of the words above.
    """

    verb: str
    changed: int = 0
    ids: tuple[int, ...] = ()
    asked: int = 0
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def untouched(self) -> int:
        return sum(self.left.values())

    def __add__(self, other: Result) -> Result:
        return replace(
            self,
            changed=self.changed + other.changed,
            ids=(self.ids + other.ids)[:KEPT_IDS],
            asked=self.asked + other.asked,
            left=dict(Counter(self.left) + Counter(other.left)),
        )

    def __str__(self) -> str:
        parts = [f"{self.verb}: {self.changed} changed"]
        if self.asked:
            parts[0] += f" ({self.asked} of them running, asked to stop)"
        parts += [f"{count} {reason}" for reason, count in sorted(self.left.items())]
        return "; ".join(parts)


def cancel(jobs: Jobs, *, by: object = None, reason: str = "") -> Result:
    """Cancel waiting jobs at once; ask running ones to stop, at their worker's next beat."""
    return _run(sql.CANCEL, Verb.CANCEL, jobs, by, reason)


def retry(
    jobs: Jobs, *, by: object = None, reason: str = "", as_of: datetime | None = None
) -> Result:
    """Make DEAD and CANCELLED jobs READY with a fresh budget; their history stays.

    as_of: only those that had ended by then, so that a repeated click never retries a job that
    ran and died again in between.
    """
    return _run(sql.RETRY, Verb.RETRY, jobs, by, reason, as_of=as_of)


def run_now(jobs: Jobs, *, by: object = None, reason: str = "") -> Result:
    """Make SCHEDULED jobs READY without waiting for their moment."""
    return _run(sql.RUN_NOW, Verb.RUN_NOW, jobs, by, reason)


def reprioritise(jobs: Jobs, priority: int, *, by: object = None, reason: str = "") -> Result:
    """Give waiting jobs another priority. Raises ValueError outside -100 to 100."""
    if not -100 <= priority <= 100:
        raise ValueError(f"priority must be a whole number between -100 and 100, not {priority}.")
    return _run(sql.REPRIORITISE, "reprioritise", jobs, by, reason, priority=priority)


def move(jobs: Jobs, queue: str, *, by: object = None, reason: str = "") -> Result:
    """Move waiting jobs to another queue. Raises ValueError for one that
    no job can be in."""
    if fault := queue_names.fault(queue):
        raise ValueError(fault)
    return _run(sql.MOVE, "move", jobs, by, reason, queue=queue)


def delete(jobs: Jobs, *, by: object = None, reason: str = "") -> Result:
    """Delete final jobs with their attempts; the events stay."""
    return _run(sql.DELETE, "delete", jobs, by, reason)


def prune(older_than: Mapping[State, float], *, by: object = None) -> Result:
    """Delete final jobs that ended longer ago than this many seconds, state by state.

    In batches, each committed by itself; rows locked by others are left for the next time.
    """
    alias, total = settings().database, 0
    for state, seconds in older_than.items():
        parameters: dict[str, Any] = {"state": str(state), "age": seconds, "limit": BATCH}
        while True:
            with connections[alias].cursor() as cursor:
                cursor.execute(sql.PRUNE, parameters)
                (count,) = cursor.fetchone()
            total += count
            if count < BATCH:
                break
    result = Result(verb=str(Verb.PRUNE), changed=total)
    log_act(result, actor(by))
    return result


def actor(by: object) -> str:
    """Return the name under which an act is recorded: of a user, or the text itself."""
    name = getattr(by, "get_username", None)
    return "" if by is None else str(name() if callable(name) else by)[:200]


def _run(
    statement: str, verb: str, jobs: Jobs, by: object, reason: str, **parameters: Any
) -> Result:
    parameters |= {"by": actor(by), "note": reason, "kind": str(verb)}
    total = Result(verb=str(verb))
    for ids in batched(_ids(jobs), BATCH, strict=False):
        total += _again_after_deadlock(statement, verb, {**parameters, "ids": list(ids)})
    log_act(total, parameters["by"])
    return total


def _ids(jobs: Jobs) -> Iterator[int]:
    """The ids in order. A filter is asked slice by slice, along the key: no cursor stays open over
    a commit, and what is enqueued meanwhile is not meant."""
    match jobs:
        case QuerySet() if jobs.model is Job:
            chosen: QuerySet[Job] = jobs.using(settings().database)
            # Evaluated twice, such a query would mean other jobs.
            if chosen.query.is_sliced or chosen.query.combinator:
                yield from sorted(set(chosen.values_list("pk", flat=True)))
            else:
                yield from _by_key(chosen.order_by("pk"))
        case Iterable() if not isinstance(jobs, str | bytes):
            yield from sorted({_id(job) for job in jobs})
        case _:
            yield _id(jobs)


def _by_key(chosen: QuerySet[Job]) -> Iterator[int]:
    newest = Job.objects.using(chosen.db).order_by("-pk").values_list("pk", flat=True).first()
    ids: list[int] = []
    while newest is not None:
        rest = chosen.filter(pk__gt=ids[-1] if ids else MIN_ID, pk__lte=newest)
        ids = list(rest.values_list("pk", flat=True)[:BATCH])
        yield from ids
        if len(ids) < BATCH:
            return


def _id(job: Any) -> int:
    match job:
        case Job(pk=int() as pk):
            return pk
        case TaskResult(id=str() as text) | (str() as text) if text.isascii() and text.isdigit():
            return int(text)
        case int() if not isinstance(job, bool):
            return job
    raise TypeError(
        f"{job!r} is no job: write a Job, its id or its TaskResult, or several of them."
    )


def _again_after_deadlock(statement: str, verb: str, parameters: dict[str, Any]) -> Result:
    """Rows are locked in id order here, but other transactions may lock them in any order."""
    alias = settings().database
    for _ in range(TRIES - 1):
        try:
            return _batch(statement, verb, parameters)
        except OperationalError as error:
            state = getattr(error.__cause__, "sqlstate", None)
            if connections[alias].in_atomic_block or state not in (DEADLOCK, SERIALIZATION):
                raise
    return _batch(statement, verb, parameters)


def _batch(statement: str, verb: str, parameters: dict[str, Any]) -> Result:
    alias = settings().database
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)
        rows = [Row(*row) for row in cursor.fetchall()]
        changed = [row for row in rows if row.changed]
        _notify_workers(verb, changed)
    left = Counter(row.why for row in rows if not row.changed)
    if missing := len(parameters["ids"]) - len(rows):
        left[MISSING] += missing
    return Result(
        verb=str(verb),
        changed=len(changed),
        ids=tuple(sorted(row.id for row in changed)),
        asked=sum(verb == Verb.CANCEL and row.was == State.RUNNING for row in changed),
        left=dict(left),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """The answer of a verb's statement for one job that is there."""

    id: int
    was: str
    changed: bool
    queue: str
    worker: Any
    why: str  # for one left alone: its state, or a word of this module


def _notify_workers(verb: str, changed: list[Row]) -> None:
    """Notify the workers after the commit."""
    if verb == Verb.CANCEL:
        for worker in {row.worker for row in changed if row.was == State.RUNNING}:
            notify(Cancel(str(worker)))
        if ended := [row.id for row in changed if row.was in WAITING]:
            alias = settings().database
            connections[alias].on_commit(lambda: send_task_finished(ended), robust=True)
    elif verb in (Verb.RETRY, Verb.RUN_NOW) or verb == "move":
        for queue in {row.queue for row in changed}:
            notify(Ready(queue))


def log_act(result: Result, by: str, **facts: Any) -> None:
    """Log one act, unless it changed nothing."""
    if result.changed:
        log.info(
            "operator_acted",
            verb=result.verb,
            changed=result.changed,
            left=dict(result.left),
            by=by,
            jobs=list(result.ids[:20]),
            **facts,
        )
