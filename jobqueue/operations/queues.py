"""The operator's verbs for queues."""

from __future__ import annotations

from django.db import connections, transaction

from jobqueue import queue_names
from jobqueue.conf import settings
from jobqueue.notifications import Message, Paused, Resumed
from jobqueue.notify import notify
from jobqueue.operations import sql
from jobqueue.operations.jobs import SAME, Result, actor, log_act


def pause(queue: str, *, by: object = None, reason: str = "") -> Result:
    """Start no further jobs of this queue; running ones continue. Raises ValueError if there is no
    such queue."""
    return _switch("pause", sql.PAUSE, queue, by, reason, Paused(queue))


def resume(queue: str, *, by: object = None, reason: str = "") -> Result:
    """Let jobs of this queue start again. Raises ValueError if there is no such queue."""
    return _switch("resume", sql.RESUME, queue, by, reason, Resumed(queue))


def _switch(
    verb: str, statement: str, queue: str, by: object, reason: str, message: Message
) -> Result:
    if fault := queue_names.unknown(queue):
        raise ValueError(fault)
    parameters = {"queue": queue, "by": actor(by), "note": reason}
    alias = settings().database
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)
        changed = cursor.fetchone() is not None
        if changed:
            notify(message)
    result = Result(verb=verb, changed=int(changed), left={} if changed else {SAME: 1})
    log_act(result, parameters["by"], queue=queue)
    return result
