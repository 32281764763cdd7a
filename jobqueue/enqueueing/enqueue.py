"""The one door in: every job's row is written here, in the caller's transaction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from django.db import connections, transaction
from django.tasks import Task

from jobqueue.conf import settings
from jobqueue.enqueueing.job_row import draft
from jobqueue.notifications import Ready, Scheduled
from jobqueue.notify import notify
from jobqueue.states import State
from jobqueue.store.inserts import INSERT


@dataclass(frozen=True, slots=True)
class Stored:
    """The values that the database gave a new job."""

    id: int
    state: str
    run_at: datetime
    enqueued_at: datetime


def insert(row: dict[str, Any]) -> Stored:
    """Insert one drafted job in the transaction that is open on the queue's database.

    Workers are notified after the commit.
    """
    alias = settings().database
    warn_of_another_transaction(alias)
    with connections[alias].cursor() as cursor:
        # Bound at the server: the arguments stand in no statement that others of this role can
        # see. Django's wrapper stays, with its checks, its log and its error classes.
        cursor.cursor = psycopg.Cursor(connections[alias].connection)
        cursor.execute(INSERT, row)
        stored = Stored(*cursor.fetchone())
    notify_new(stored.state, row["queue"], stored.run_at, row["priority"])
    return stored


def enqueue_on_commit(task: Task[..., Any], *args: Any, **kwargs: Any) -> None:
    """Enqueue after the commit of the open transaction; now, when none is open.

    The arguments are checked at once. Raises ArgumentsError, EnqueueError or TypeError.
    """
    if not isinstance(task, Task):
        raise TypeError(
            f"{task!r} is not a task: write enqueue_on_commit(task, ...) with a function under "
            "@task, and its arguments after it."
        )
    draft(task, args, kwargs, settings())
    transaction.on_commit(lambda: task.enqueue(*args, **kwargs), using=settings().database)


def notify_new(state: str, queue: str, run_at: datetime, priority: int) -> None:
    """Notify the workers of a new job."""
    if state == State.SCHEDULED:
        notify(Scheduled(run_at.timestamp()))
    else:
        notify(Ready(queue, priority))


def warn_of_another_transaction(alias: str) -> None:
    """Warn of a job in its own transaction alongside an open one elsewhere: rarely intended."""
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
