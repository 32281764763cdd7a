"""Django's task signals as the web side sends them: a broken receiver harms nobody else."""

from __future__ import annotations

import contextlib
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.dispatch import Signal
from django.tasks import TaskResult

from jobqueue.conf import settings
from jobqueue.logs import get_logger

log = get_logger()


def send(signal: Signal, name: str, sender: type, result: TaskResult[..., Any]) -> None:
    """Send the signal. A receiver's exception is logged, and its failed query rolled back."""
    alias = settings().database
    # Django connects one receiver of its own, which only logs.
    if len(signal.receivers) < 2 or not connections[alias].in_atomic_block:
        with contextlib.suppress(DatabaseError):
            _send(signal, name, sender, result)
        return
    # Without a savepoint a receiver's failed query would take the caller's transaction with it.
    try:
        with transaction.atomic(using=alias):
            _send(signal, name, sender, result)
            if connections[alias].needs_rollback:
                raise DatabaseError("a receiver failed and kept it to itself")
    except DatabaseError as error:
        log.warning("signal_receivers_rolled_back", signal=name, job=result.id, error=str(error))


def _send(signal: Signal, name: str, sender: type, result: TaskResult[..., Any]) -> None:
    """Raises the first DatabaseError of a receiver, after all of them were called."""
    try:
        answers = signal.send_robust(sender, task_result=result)
    except SystemExit as leaving:  # not an Exception: send_robust lets it through
        answers = [(signal, leaving)]  # type: ignore[list-item]
    failed = [(receiver, error) for receiver, error in answers if isinstance(error, BaseException)]
    for receiver, error in failed:
        log.error(
            "signal_receiver_failed",
            signal=name,
            job=result.id,
            receiver=repr(receiver),
            exc_info=error,
        )
    for _, error in failed:
        if isinstance(error, DatabaseError):
            raise error
