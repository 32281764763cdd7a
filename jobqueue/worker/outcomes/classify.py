"""From how a handler ended to what is written: first the outcome, then how to store it."""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg.errors import QueryCanceled

from jobqueue.conf import Settings
from jobqueue.exceptions import (
    JobCancelled,
    JobInterrupted,
    JobTimeout,
    PermanentError,
    Snooze,
    check_delay,
)
from jobqueue.logs import get_logger
from jobqueue.payload import NotJSON, clean, encode_result
from jobqueue.states import Outcome, Reason
from jobqueue.store.claims import Claim
from jobqueue.store.finish import Ending
from jobqueue.worker.inflight import InFlight, Stop
from jobqueue.worker.outcomes import error_text, retry_delay
from jobqueue.worker.outcomes.attempt_options import Options

NO_CONNECTION_SECONDS = 5.0
# No way back to the queue that counts nothing is quicker, except at a shutdown: else a job could go
# round at full speed.
LEAST_SECONDS = 1.0
log = get_logger()

INTERRUPTS = (asyncio.CancelledError, JobCancelled, JobInterrupted, JobTimeout, QueryCanceled)
TIMEOUT_CLASS = f"{JobTimeout.__module__}.{JobTimeout.__qualname__}"


class BadResult(Exception):
    """The result of an atomic handler cannot be stored: its transaction rolls back."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.error_message)
        self.ending = ending


class NoConnection(Exception):
    """An atomic handler's transaction could not begin."""


def of(
    inflight: InFlight, value: Any, error: BaseException | None, chosen: Options, settings: Settings
) -> Ending:
    """Return what a handler's end means, whatever its value or error does when inspected."""
    try:
        if error is None:
            return returned(inflight, value, settings)
        return raised(inflight, error, chosen, settings)
    except BaseException as broken:
        final = error is None
        reason = Reason.BAD_RESULT if final else Reason.RETRY
        delay = 0.0 if final else retry_delay.default_retry_delay(inflight, settings)
        return failed(inflight, broken, final=final, reason=reason, delay=delay)


def returned(inflight: InFlight, value: Any, settings: Settings) -> Ending:
    """The handler returned: it has succeeded, whatever was asked of it meanwhile."""
    try:
        result = encode_result(value, settings.result_max_bytes)
    except NotJSON as error:
        return _bad_result(inflight, error)
    claim = inflight.claim
    return Ending(
        id=claim.id,
        token=claim.token,
        outcome=Outcome.SUCCEEDED,
        result=result,
        progress=inflight.control.progress,
    )


def _bad_result(inflight: InFlight, error: NotJSON) -> Ending:
    # Another run would give the same result: no retry.
    return failed(inflight, error, final=True, reason=Reason.BAD_RESULT)


def raised(inflight: InFlight, error: BaseException, chosen: Options, settings: Settings) -> Ending:
    """The handler raised, by itself or because it was asked to stop."""
    match error:
        case BadResult():
            return error.ending
        case NoConnection():
            return no_connection(inflight.claim, error)
    if inflight.stop_reason is not None and unwound(error):
        return _stopped(inflight, error, chosen, settings)
    match error:
        case Snooze():
            return _snoozed(inflight, error)
        case PermanentError():
            return failed(inflight, error, final=True, reason=Reason.PERMANENT)
        case JobCancelled() if inflight.control.cancelled:
            return _cancelled(inflight, error)
    return failed(
        inflight,
        error,
        delay=retry_delay.retry_delay(inflight, error, chosen, settings),
        reason=Reason.RETRY,
    )


def _stopped(
    inflight: InFlight, error: BaseException, chosen: Options, settings: Settings
) -> Ending:
    """What an interrupted handler raises may still steer, but a shutdown ends no job."""
    match inflight.stop_reason:
        case Stop.CANCEL:
            return _cancelled(inflight, error)
        case Stop.TIMEOUT:
            return _timed_out(inflight, error, chosen, settings)
    if isinstance(error, Snooze):
        return _snoozed(inflight, error)
    if inflight.stop_reason is Stop.LEASE:  # this process stays, and may claim it again
        return _ending(inflight, Outcome.INTERRUPTED, reason=Reason.INTERRUPTED, hold=LEAST_SECONDS)
    return interrupted(inflight)


def _snoozed(inflight: InFlight, error: Snooze) -> Ending:
    least = 0.0 if inflight.control.stopping else LEAST_SECONDS
    delay = max(check_delay("Snooze", error.seconds), least)
    return _ending(inflight, Outcome.SNOOZED, delay=delay, reason=Reason.SNOOZED)


def _cancelled(inflight: InFlight, error: BaseException) -> Ending:
    by_itself = isinstance(error, JobCancelled) and not inflight.interrupt_raised
    reason = Reason.CANCELLED_COOPERATIVE if by_itself else Reason.CANCELLED_FORCED
    return _ending(inflight, Outcome.CANCELLED, reason=reason)


def _timed_out(
    inflight: InFlight, error: BaseException, chosen: Options, settings: Settings
) -> Ending:
    final = isinstance(error, PermanentError)
    limit = "its time" if chosen.timeout is None else f"its timeout of {chosen.timeout:g} s"
    message = f"The attempt ran longer than {limit}."
    if not isinstance(error, INTERRUPTS) and (said := error_text.message_of(error)):
        message = f"{message} Then, while it unwound: {error_text.path_of(error)}: {said}"
    return failed(
        inflight,
        error,
        outcome=Outcome.TIMED_OUT,
        final=final,
        delay=0.0 if final else retry_delay.retry_delay(inflight, error, chosen, settings),
        reason=Reason.PERMANENT if final else Reason.RETRY,
        error_class=TIMEOUT_CLASS,
        message=clean(message, error_text.MESSAGE_LIMIT),
    )


def interrupted(inflight: InFlight, hold: float | None = None) -> Ending:
    """A shutdown ended the attempt: nothing is counted. With a hold (seconds) if the handler has
    not ended: nobody may claim the job before this process is certainly gone."""
    reason = Reason.INTERRUPTED if hold is None else Reason.HELD
    return _ending(inflight, Outcome.INTERRUPTED, reason=reason, hold=hold)


def unstarted(claim: Claim, *, at_once: bool) -> Ending:
    """The handler never began: return the job to its place, as if never claimed; after a moment, if
    this process may claim it again."""
    if at_once:
        return Ending(id=claim.id, token=claim.token, outcome=None)
    return Ending(
        id=claim.id, token=claim.token, outcome=None, hold=LEAST_SECONDS, reason=Reason.RETURNED
    )


def no_connection(claim: Claim, error: BaseException) -> Ending:
    """The handler could not get a database connection and did not begin: not a failure."""
    return Ending(
        id=claim.id,
        token=claim.token,
        outcome=None,
        delay=NO_CONNECTION_SECONDS,
        reason=Reason.NO_CONNECTION,
        error_message=error_text.message_of(error),
    )


def parked(claim: Claim, why: str) -> Ending:
    """This code does not know the task. A worker that does brings the job back: see
    `jobqueue.worker.claiming.parked_jobs`."""
    return Ending(
        id=claim.id,
        token=claim.token,
        outcome=None,
        reason=Reason.UNKNOWN_TASK,
        error_message=clean(why, error_text.MESSAGE_LIMIT),
    )


def invalid_arguments(inflight: InFlight, error: TypeError) -> Ending:
    """The stored arguments do not fit the function: only new code or a retry by hand helps."""
    claim = inflight.claim
    message = (
        f"The stored arguments do not fit {claim.task}: {error}. "
        f"When this was enqueued the parameters were {claim.signature or 'not recorded'}."
    )
    return failed(inflight, TypeError(message), final=True, reason=Reason.INVALID_ARGUMENTS)


def unreadable(inflight: InFlight) -> Ending:
    """The arguments or options are JSON for the database but not for Python: nothing can begin."""
    message = f"The stored arguments or options cannot be read: {inflight.claim.fault}."
    return failed(inflight, ValueError(message), final=True, reason=Reason.INVALID_ARGUMENTS)


def cannot_be_atomic(inflight: InFlight) -> Ending:
    """Enqueued as atomic, when the task was still a plain function."""
    message = (
        f"{inflight.claim.task} is a coroutine, which cannot run atomically: "
        "Django's transactions do not span awaits."
    )
    return failed(inflight, PermanentError(message), final=True, reason=Reason.PERMANENT)


def broken(inflight: InFlight, error: BaseException, settings: Settings) -> Ending:
    """The worker itself failed around the handler: counted as a failure, so that it ends."""
    return failed(
        inflight,
        error,
        delay=retry_delay.default_retry_delay(inflight, settings),
        reason=Reason.RETRY,
    )


def refused_by_database(ending: Ending, error: Exception) -> Ending:
    """The database cannot store this outcome's data: a failure in its place."""
    return Ending(
        id=ending.id,
        token=ending.token,
        outcome=Outcome.FAILED,
        final=True,
        reason=Reason.BAD_RESULT,
        error_class=error_text.path_of(error),
        error_message=clean(f"the database refused the outcome: {error}", error_text.MESSAGE_LIMIT),
    )


def _ending(
    inflight: InFlight,
    outcome: Outcome,
    *,
    reason: str,
    delay: float = 0.0,
    hold: float | None = None,
) -> Ending:
    return Ending(
        id=inflight.claim.id,
        token=inflight.claim.token,
        outcome=outcome,
        reason=reason,
        delay=delay,
        hold=hold,
        progress=inflight.control.progress,
    )


def failed(
    inflight: InFlight,
    error: BaseException,
    *,
    reason: str,
    outcome: Outcome = Outcome.FAILED,
    final: bool = False,
    delay: float = 0.0,
    error_class: str = "",
    message: str = "",
) -> Ending:
    """A failure, with what the error says."""
    return Ending(
        id=inflight.claim.id,
        token=inflight.claim.token,
        outcome=outcome,
        final=final,
        delay=delay,
        reason=reason,
        error_class=error_class or error_text.path_of(error),
        error_message=message or error_text.message_of(error),
        traceback=error_text.traceback_of(error),
        progress=inflight.control.progress,
    )


def unwound(error: BaseException) -> bool:
    """Whether the interrupt caused this error: the interrupt itself, or one while unwinding."""
    return any(isinstance(each, INTERRUPTS) for each in error_text.related(error))
