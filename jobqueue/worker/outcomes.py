"""From how a handler ended to what is written: outcome first, storage second."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from dataclasses import dataclass
from typing import Any

import structlog
from django.tasks import Task
from django.utils.module_loading import import_string
from psycopg.errors import QueryCanceled

from jobqueue import backoff
from jobqueue.conf import Settings
from jobqueue.exceptions import (
    JobCancelled,
    JobInterrupted,
    JobTimeout,
    PermanentError,
    RetryLater,
    Snooze,
)
from jobqueue.payload import NotJSON, clean, encode
from jobqueue.states import Outcome, Reason
from jobqueue.store.claims import Claim
from jobqueue.store.endings import Ending
from jobqueue.tasks import options_of
from jobqueue.worker.held import Held, Stop

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000
PARK_SECONDS, PARK_MAX_SECONDS = 10.0, 600.0
log = structlog.get_logger("jobqueue")

INTERRUPTS = (asyncio.CancelledError, JobCancelled, JobInterrupted, JobTimeout, QueryCanceled)


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for one attempt: the call's option, else the task's, else the setting's."""

    timeout: float | None
    backoff: backoff.Backoff | None
    atomic: bool
    interruptible: bool


def options(claim: Claim, task: Task[..., Any], settings: Settings) -> Options:
    """Return the options of this attempt. Raises ImportError for a backoff that is gone."""
    chosen: dict[str, Any] = {**options_of(task), **claim.options}
    rule = chosen.get("backoff")
    return Options(
        timeout=chosen.get("timeout", settings.timeout_seconds),
        backoff=import_string(rule) if isinstance(rule, str) else rule,
        atomic=chosen.get("atomic", False),
        interruptible=chosen.get("interruptible", True),
    )


def returned(held: Held, value: Any, settings: Settings) -> Ending:
    """The handler returned: it has succeeded, whatever it had been told meanwhile."""
    if inspect.isawaitable(value) or inspect.isasyncgen(value) or inspect.isgenerator(value):
        if inspect.iscoroutine(value):
            value.close()
        error = NotJSON(f"the task returned a {type(value).__name__}, which nobody has run.")
        return _bad_result(held, error)
    try:
        result = encode(value, "result", settings.result_max_bytes, "RESULT_MAX_BYTES")
    except NotJSON as error:
        return _bad_result(held, error)
    claim = held.claim
    return Ending(
        id=claim.id,
        token=claim.token,
        outcome=Outcome.SUCCEEDED,
        result=result,
        progress=held.control.progress,
    )


def _bad_result(held: Held, error: NotJSON) -> Ending:
    # A second run would give the same result: no retry.
    return _failed(held, error, final=True, reason=Reason.BAD_RESULT)


def raised(
    held: Held, error: BaseException, rule: backoff.Backoff | None, settings: Settings
) -> Ending:
    """The handler raised, by itself or because it was told to stop."""
    if held.told is not None and _unwound(error):
        return _stopped(held, error, rule, settings)
    match error:
        case Snooze():
            return _ending(held, Outcome.SNOOZED, delay=error.seconds, reason=Reason.SNOOZED)
        case RetryLater():
            return _failed(held, error, delay=error.seconds, reason=Reason.RETRY)
        case PermanentError():
            return _failed(held, error, final=True, reason=Reason.PERMANENT)
        case JobCancelled() if held.control.cancelled:
            return _ending(held, Outcome.CANCELLED, reason=Reason.CANCELLED_COOPERATIVE)
    return _failed(held, error, delay=_delay(held, rule, settings), reason=Reason.RETRY)


def _stopped(
    held: Held, error: BaseException, rule: backoff.Backoff | None, settings: Settings
) -> Ending:
    if held.told is Stop.CANCEL:
        looked = isinstance(error, JobCancelled) and str(error) != ""
        reason = Reason.CANCELLED_COOPERATIVE if looked else Reason.CANCELLED_FORCED
        return _ending(held, Outcome.CANCELLED, reason=reason)
    if held.told is Stop.TIMEOUT:
        return _failed(
            held,
            error,
            outcome=Outcome.TIMED_OUT,
            delay=_delay(held, rule, settings),
            reason=Reason.RETRY,
        )
    return interrupted(held)


def interrupted(held: Held, hold: float | None = None) -> Ending:
    """A shutdown took the attempt: nothing is counted. With a hold (seconds) when the handler has
    not ended: nobody may claim the job before this process is certainly gone."""
    reason = Reason.INTERRUPTED if hold is None else Reason.HELD
    return _ending(held, Outcome.INTERRUPTED, reason=reason, hold=hold)


def unstarted(claim: Claim) -> Ending:
    """The handler never began: back to its place, as if never claimed."""
    return Ending(id=claim.id, token=claim.token, outcome=None)


def parked(claim: Claim, why: str) -> Ending:
    """This code does not know the task; newer code may. The wait doubles, up to ten minutes."""
    waited = claim.parked_seconds or 0.0
    return Ending(
        id=claim.id,
        token=claim.token,
        outcome=None,
        delay=min(max(waited, PARK_SECONDS), PARK_MAX_SECONDS),
        reason=Reason.UNKNOWN_TASK,
        error_message=clean(why, MESSAGE_LIMIT),
    )


def invalid_arguments(held: Held, error: TypeError) -> Ending:
    """The stored arguments do not fit the function any more: only new code or a retry helps."""
    claim = held.claim
    message = (
        f"The stored arguments do not fit {claim.task}: {error}. "
        f"When this was enqueued the parameters were {claim.signature or 'not recorded'}."
    )
    return _failed(held, TypeError(message), final=True, reason=Reason.INVALID_ARGUMENTS)


def refused_by_database(ending: Ending, error: Exception) -> Ending:
    """The database cannot store this outcome's data: a failure in its place."""
    return Ending(
        id=ending.id,
        token=ending.token,
        outcome=Outcome.FAILED,
        final=True,
        reason=Reason.BAD_RESULT,
        error_class=_path(type(error)),
        error_message=clean(f"the database refused the outcome: {error}", MESSAGE_LIMIT),
    )


def _ending(
    held: Held,
    outcome: Outcome,
    *,
    reason: str,
    delay: float = 0.0,
    hold: float | None = None,
) -> Ending:
    return Ending(
        id=held.claim.id,
        token=held.claim.token,
        outcome=outcome,
        reason=reason,
        delay=delay,
        hold=hold,
        progress=held.control.progress,
    )


def _failed(
    held: Held,
    error: BaseException,
    *,
    reason: str,
    outcome: Outcome = Outcome.FAILED,
    final: bool = False,
    delay: float = 0.0,
) -> Ending:
    return Ending(
        id=held.claim.id,
        token=held.claim.token,
        outcome=outcome,
        final=final,
        delay=delay,
        reason=reason,
        error_class=_path(type(error)),
        error_message=message_of(error),
        traceback=traceback_of(error),
        progress=held.control.progress,
    )


def _unwound(error: BaseException) -> bool:
    """Whether the interrupt brought this about: itself, or an error raised while it unwound."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, INTERRUPTS):
            return True
        if isinstance(current, BaseExceptionGroup) and any(map(_unwound, current.exceptions)):
            return True
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return False


def _delay(held: Held, rule: backoff.Backoff | None, settings: Settings) -> float:
    failures = held.claim.failures + 1
    base, ceiling = settings.backoff_base_seconds, settings.backoff_max_seconds
    try:
        return backoff.delay(failures, base=base, ceiling=ceiling, rule=rule)
    except Exception:
        log.warning("backoff_failed", job=held.claim.id, task=held.claim.task, exc_info=True)
        return backoff.delay(failures, base=base, ceiling=ceiling)


def _path(kind: type) -> str:
    return clean(f"{kind.__module__}.{kind.__qualname__}", 500)


def message_of(error: BaseException) -> str:
    """Return an exception's text, bounded; also of one that cannot be printed."""
    try:
        return clean(str(error), MESSAGE_LIMIT)
    except BaseException as broken:
        return f"<the message cannot be shown: {type(broken).__name__}>"


def traceback_of(error: BaseException) -> str:
    """Return the traceback as text: the chain and groups bounded, no local variables."""
    try:
        rendered = traceback.TracebackException.from_exception(
            error, limit=-40, max_group_width=10, max_group_depth=5, compact=True
        )
        parts, size = [], 0
        for line in rendered.format():
            parts.append(line)
            size += len(line)
            if size > 8 * TRACEBACK_LIMIT:
                break
        return clean("".join(parts), TRACEBACK_LIMIT)
    except BaseException as broken:
        return f"<the traceback cannot be shown: {type(broken).__name__}>"
