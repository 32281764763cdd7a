"""What happened to an outcome whose row no longer has its token: it landed, or was refused."""

from __future__ import annotations

from jobqueue.states import Outcome, Reason, State
from jobqueue.store.claims import Claim
from jobqueue.store.finish import Ending, Stands
from jobqueue.worker.inflight import Fate, InFlight


def has_landed(ending: Ending, found: Stands | None) -> bool:
    """Whether an earlier copy of this write landed. A job that never started has no history:
    finding none means it went back to the queue."""
    if found is None:
        return ending.outcome is None
    return found.recorded_by == "holder"


def as_recorded(inflight: InFlight, ending: Ending, found: Stands | None) -> Ending:
    """An atomic handler's success may be committed although its answer was lost."""
    recording: Ending | None = inflight.recording
    if recording is not None and found is not None and found.outcome == recording.outcome:
        return recording
    return ending


def decided_state(claim: Claim, ending: Ending, found: Stands | None) -> str:
    """What the earlier copy decided, for the log line and signal: the row's state, or, if the row
    has moved on, what it must have been."""
    if found is not None and found.state is not None:
        return found.state
    if ending.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):
        return str(ending.outcome)
    counted = ending.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
    if ending.final or (counted and claim.failures + 1 >= claim.max_attempts):
        return State.DEAD
    is_parked = ending.reason == Reason.UNKNOWN_TASK
    return State.SCHEDULED if ending.delay or ending.hold or is_parked else State.READY


def fate_of(ending: Ending) -> Fate:
    """How the shutdown's accounting counts a written outcome."""
    if ending.outcome is None:
        return Fate.RETURNED
    return Fate.INTERRUPTED if ending.outcome == Outcome.INTERRUPTED else Fate.COMPLETED
