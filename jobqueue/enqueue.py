"""The one door in: every job's row is written here, in the caller's transaction."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.tasks import Task

from jobqueue.conf import settings
from jobqueue.draft import draft
from jobqueue.exceptions import EnqueueError
from jobqueue.states import State
from jobqueue.store.inserts import INSERT
from jobqueue.wake import tell_ready, tell_scheduled

RESERVE = """
SELECT nextval(pg_get_serial_sequence('jobqueue_job', 'id')), clock_timestamp()
FROM generate_series(1, %(count)s)
"""

COPY = """
COPY jobqueue_job
    (id, task, args, kwargs, signature, queue, backend, priority, options, state, run_at,
     expires_at, max_attempts, parent, traceparent, enqueued_at)
FROM STDIN
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database decided about a new job."""

    id: int
    state: str
    run_at: datetime
    enqueued_at: datetime


def enqueue(
    task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any], backend: str
) -> Stored:
    """Insert one job in the transaction that is open on the queue's database.

    The wake goes out after the commit. Raises ArgumentsError, or TypeError when the task cannot be
    called with these arguments, before anything is sent to the database.
    """
    row = draft(task, args, kwargs, settings(), backend)
    alias = settings().database
    _warn_of_another_transaction(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute(INSERT, row)
        stored = Stored(*cursor.fetchone())
    _tell(stored.state, task.queue_name, stored.run_at, task.priority)
    return stored


def enqueue_many(items: Iterable[tuple[Any, ...]]) -> list[int]:
    """Insert many jobs at once and return their ids in order; all of them, or none.

    Each item is `(task,)`, `(task, args)` or `(task, args, kwargs)`. Every item is checked before
    the first is sent; the error names the position of the bad one. No `task_enqueued` signals.
    """
    rows = _rows(items)
    if not rows:
        return []
    alias = settings().database
    _warn_of_another_transaction(alias)
    with transaction.atomic(using=alias, savepoint=False), connections[alias].cursor() as cursor:
        cursor.execute(RESERVE, {"count": len(rows)})
        reserved = cursor.fetchall()
        ids = sorted(id for id, _ in reserved)
        now = reserved[0][1]
        lines = [_copied(id, row, now) for id, row in zip(ids, rows, strict=True)]
        with cursor.copy(COPY) as copy:
            for line in lines:
                copy.write_row(line)
        for queue, state, run_at, priority in {(x[5], x[9], x[10], x[7]) for x in lines}:
            _tell(state, queue, run_at, priority)
    return ids


def enqueue_on_commit(task: Task[..., Any], *args: Any, **kwargs: Any) -> None:
    """Enqueue after the commit of the open transaction; now, when none is open.

    The arguments are checked at once.
    """
    draft(task, args, kwargs, settings())
    transaction.on_commit(lambda: task.enqueue(*args, **kwargs), using=settings().database)


def _rows(items: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    current = settings()
    rows: list[dict[str, Any]] = []
    for position, item in enumerate(items):
        try:
            rows.append(draft(*_parts(item), current))
        except (TypeError, ValueError) as error:
            raise EnqueueError(f"item {position}: {error}") from error
    return rows


def _parts(item: Any) -> tuple[Task[..., Any], Sequence[Any], dict[str, Any]]:
    match item:
        case (Task() as task,):
            return task, (), {}
        case (Task() as task, list() | tuple() as args):
            return task, args, {}
        case (Task() as task, list() | tuple() as args, dict() as kwargs):
            return task, args, kwargs
    raise TypeError("write (task, args, kwargs): a function under @task, a list, a dict.")


def _copied(id: int, row: dict[str, Any], now: datetime) -> tuple[Any, ...]:
    """Return the row as COPY wants it. The database's clock decides what is due."""
    run_after, expires = row["run_after"], row["expires"]
    scheduled = run_after is not None and run_after > now
    run_at = run_after if scheduled else now
    return (
        id,
        row["task"],
        row["args"],
        row["kwargs"],
        row["signature"],
        row["queue"],
        row["backend"],
        row["priority"],
        row["options"],
        State.SCHEDULED if scheduled else State.READY,
        run_at,
        None if expires is None else run_at + timedelta(seconds=expires),
        row["max_attempts"],
        row["parent"],
        row["traceparent"],
        now,
    )


def _tell(state: str, queue: str, run_at: datetime, priority: int) -> None:
    if state == State.SCHEDULED:
        tell_scheduled(run_at)
    else:
        tell_ready(queue, priority)


def _warn_of_another_transaction(alias: str) -> None:
    """A job in its own transaction beside an open one elsewhere: seldom what was meant."""
    if connections[alias].in_atomic_block:
        return
    for other in connections.all(initialized_only=True):
        if other.alias != alias and other.in_atomic_block:
            warnings.warn(
                f"A transaction is open on {other.alias!r}, but jobs are stored on {alias!r}: "
                "this job is committed at once. Use enqueue_on_commit, or open the transaction "
                f"with transaction.atomic(using={alias!r}).",
                RuntimeWarning,
                stacklevel=5,
            )
