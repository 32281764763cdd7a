"""Many jobs at once, through COPY, in the caller's transaction: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import batched
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.tasks import Task

from jobqueue.conf import settings
from jobqueue.enqueueing.enqueue import notify_new, warn_of_another_transaction
from jobqueue.enqueueing.job_row import draft, encode_arguments
from jobqueue.exceptions import EnqueueError
from jobqueue.payload import size_of
from jobqueue.states import State

RESERVE = """
WITH source AS MATERIALIZED (
    SELECT pg_get_serial_sequence('jobqueue_job', 'id')::regclass AS ids
)
SELECT ARRAY(SELECT nextval(ids) FROM source, generate_series(1, %(count)s)), clock_timestamp()
"""

# Columns that differ between jobs come first, so that the rest is formatted once per task.
COPY = """
COPY jobqueue_job
    (id, args, kwargs, args_bytes, task, signature, queue, backend, priority, options, state,
     run_at, expires_at, max_attempts, parent, traceparent, enqueued_at)
FROM STDIN
"""
BLOCK = 1_000  # lines sent at once

_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Row(NamedTuple):
    """A job to insert."""

    common: dict[str, Any]  # shared by all jobs of its task
    args: str
    kwargs: str


def enqueue_many(items: Iterable[tuple[Any, ...]]) -> list[int]:
    """Insert many jobs at once and return their ids in order; all of them, or none.

    Each item is `(task,)`, `(task, args)` or `(task, args, kwargs)`. Every item is checked before
    the first is sent; the error names the position of the bad one. No `task_enqueued` signals.
    """
    rows = _rows(items)
    if not rows:
        return []
    alias = settings().database
    warn_of_another_transaction(alias)
    with transaction.atomic(using=alias, savepoint=False), connections[alias].cursor() as cursor:
        cursor.execute(RESERVE, {"count": len(rows)})
        ids, now = cursor.fetchone()
        ids.sort()
        with cursor.copy(COPY) as copy:
            for lines in batched(_lines(ids, rows, now), BLOCK, strict=False):
                copy.write("".join(lines))
        for common in {id(row.common): row.common for row in rows}.values():
            state, run_at = _start(common, now)
            notify_new(state, common["queue"], run_at, common["priority"])
    return list(ids)


def _rows(items: Iterable[tuple[Any, ...]]) -> list[Row]:
    current, rows = settings(), []
    seen: dict[int, tuple[Task[..., Any], dict[str, Any]]] = {}  # holds the task, and so its id
    for position, item in enumerate(items):
        try:
            task, args, kwargs = _parts(item)
            if id(task) not in seen:
                seen[id(task)] = (task, draft(task, args, kwargs, current))
            rows.append(Row(seen[id(task)][1], *encode_arguments(task, args, kwargs, current)))
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


def _lines(ids: Iterable[int], rows: Iterable[Row], now: datetime) -> Iterator[str]:
    """Yield the rows in COPY's format."""
    tails: dict[int, str] = {}
    for number, row in zip(ids, rows, strict=True):
        common = row.common
        tail = tails.get(id(common))
        if tail is None:
            tail = tails[id(common)] = "\t".join(map(_field, _common_fields(common, now)))
        # JSON has no other characters that COPY would misread.
        args = row.args.replace("\\", "\\\\")
        kwargs = row.kwargs.replace("\\", "\\\\")
        size = size_of(row.args) + size_of(row.kwargs)
        yield f"{number}\t{args}\t{kwargs}\t{size}\t{tail}\n"


def _common_fields(common: dict[str, Any], now: datetime) -> tuple[Any, ...]:
    state, run_at = _start(common, now)
    expires = common["expires"]
    return (
        common["task"],
        common["signature"],
        common["queue"],
        common["backend"],
        common["priority"],
        common["options"],
        state,
        run_at,
        None if expires is None else run_at + timedelta(seconds=expires),
        common["max_attempts"],
        common["parent"],
        common["traceparent"],
        now,
    )


def _start(common: dict[str, Any], now: datetime) -> tuple[State, datetime]:
    """The database's clock decides what is due."""
    run_after = common["run_after"]
    if run_after is not None and run_after > now:
        return State.SCHEDULED, run_after
    return State.READY, now


def _field(value: Any) -> str:
    return "\\N" if value is None else str(value).translate(_ESCAPED)
