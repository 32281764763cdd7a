"""The words of the queue: states, outcomes, reasons, and the only transitions between states."""

from enum import StrEnum


class State(StrEnum):
    """Where a job stands. The transitions are those of TRANSITIONS; there are no others."""

    SCHEDULED = "SCHEDULED"  # waits for its time: a first run, a retry, a snooze, or parked
    READY = "READY"  # any worker of its queue may claim it
    BLOCKED = "BLOCKED"  # waits for its concurrency key
    RUNNING = "RUNNING"  # held by one worker under a lease
    SUCCEEDED = "SUCCEEDED"
    DEAD = "DEAD"  # will not run again by itself: a dead letter
    CANCELLED = "CANCELLED"


WAITING = frozenset({State.SCHEDULED, State.READY, State.BLOCKED})
FINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})


class Outcome(StrEnum):
    """How one attempt ended: what the handler did, not what happens to the job next."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"  # it unwound after an operator's cancel
    INTERRUPTED = "INTERRUPTED"  # a shutdown ended it after it had started
    SNOOZED = "SNOOZED"
    LOST = "LOST"  # its lease lapsed; written by the leader


COUNTED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST})


class Reason(StrEnum):
    """Why a job ended as it did, or why it waits. Stored in `Job.reason`."""

    # DEAD
    PERMANENT = "permanent error"
    ATTEMPTS_SPENT = "attempts spent"
    TIMED_OUT = "timed out"  # the last of its attempts
    WORKER_LOST = "worker lost"
    INVALID_ARGUMENTS = "invalid arguments"
    BAD_RESULT = "bad result"
    EXPIRED = "expired"
    UNKNOWN_TASK = "unknown task"  # also of a parked job
    # CANCELLED
    CANCELLED_WAITING = "cancelled before start"
    CANCELLED_COOPERATIVE = "cancelled by the handler"
    CANCELLED_FORCED = "cancelled by force"
    CANCELLED_INSTEAD = "cancelled instead of running again"
    CANCELLED_LOST = "cancelled after its worker was lost"
    # SCHEDULED or READY
    RETRY = "retry"
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    HELD = "held until its old process is gone"
    NO_CONNECTION = "no database connection"
    COMMIT_LOST = "connection lost at COMMIT"
    RETURNED = "returned unstarted"


# The kinds of events that workers and the leader write about a job. They are deleted with it; every
# other kind is an act of a person, which outlives the job.
NOTES = ("blocked_loop", "expire", "reclaim")

# Begins the reason of a schedule that the leader disabled; an operator's switch has no such word.
AUTOMATIC = "automatic: "


class Phase(StrEnum):
    """A worker process's phase; it only moves forward."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    CANCELLING = "CANCELLING"
    RELEASING = "RELEASING"
    STOPPED = "STOPPED"


class IdleReason(StrEnum):
    """Why a running worker claims nothing although jobs may wait."""

    SIGNALS = "SIGNALS"  # receivers of Django's task signals lag far behind the jobs
    ANSWERS = "ANSWERS"  # claims whose answers were lost may fill all slots
    OUTCOMES = "OUTCOMES"  # all slots are waiting for outcomes to be written
    OUTAGE = "OUTAGE"  # the database does not answer the claims
    MAX_JOBS = "MAX_JOBS"  # no more attempts may begin in this process: it awaits the last ones


class Stop(StrEnum):
    """Why a handler was asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LEASE = "lease"  # lost, or impossible to renew in time


class Fate(StrEnum):
    """How a claim ended, as the shutdown's accounting counts it. Each claim has exactly one."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    RETURNED = "returned"
    UNRECORDED = "unrecorded"


class Wake(StrEnum):
    """How a worker hears of new jobs; instead of these, also "polling: " and an error."""

    NOTIFIED = "notified"
    OFF = "polling: NOTIFY is off"
    STARTING = "polling: no notification yet"
    RECONNECTING = "polling: reconnecting"
    SILENT = "polling: notifications do not arrive (is there a pooler in between?)"


class Verb(StrEnum):
    """Everything that may change a job's state."""

    ENQUEUE = "enqueue"
    PROMOTE = "promote"
    CLAIM = "claim"
    RENEW = "renew"
    FINISH = "finish"
    RELEASE = "release"
    RECLAIM = "reclaim"
    EXPIRE = "expire"
    ADMIT = "admit"
    CANCEL = "cancel"
    RETRY = "retry"
    RUN_NOW = "run now"
    PRUNE = "prune"


Pair = tuple[State | None, State | None]  # None: the row does not exist


def _pairs(sources: set[State | None], targets: set[State | None]) -> frozenset[Pair]:
    return frozenset((source, target) for source in sources for target in targets)


_S = State
TRANSITIONS: dict[Verb, frozenset[Pair]] = {
    Verb.ENQUEUE: _pairs({None}, {_S.READY, _S.SCHEDULED, _S.BLOCKED}),
    Verb.PROMOTE: _pairs({_S.SCHEDULED}, {_S.READY, _S.BLOCKED}),
    Verb.CLAIM: _pairs({_S.READY}, {_S.RUNNING}),
    Verb.RENEW: _pairs({_S.RUNNING}, {_S.RUNNING}),
    Verb.FINISH: _pairs(
        {_S.RUNNING}, {_S.SUCCEEDED, _S.DEAD, _S.CANCELLED, _S.SCHEDULED, _S.READY}
    ),
    Verb.RELEASE: _pairs({_S.RUNNING}, {_S.READY, _S.SCHEDULED, _S.CANCELLED}),
    Verb.RECLAIM: _pairs({_S.RUNNING}, {_S.READY, _S.SCHEDULED, _S.DEAD, _S.CANCELLED}),
    Verb.EXPIRE: _pairs({_S.SCHEDULED, _S.READY, _S.BLOCKED}, {_S.DEAD}),
    Verb.ADMIT: _pairs({_S.BLOCKED}, {_S.READY}),
    Verb.CANCEL: _pairs({_S.SCHEDULED, _S.READY, _S.BLOCKED}, {_S.CANCELLED})
    | {(_S.RUNNING, _S.RUNNING)},
    Verb.RETRY: _pairs({_S.DEAD, _S.CANCELLED}, {_S.READY, _S.BLOCKED}),
    Verb.RUN_NOW: _pairs({_S.SCHEDULED}, {_S.READY}),
    Verb.PRUNE: _pairs({_S.SUCCEEDED, _S.DEAD, _S.CANCELLED}, {None}),
}
