"""What follows an outcome once its fate is known: one log line and Django's signal."""

from __future__ import annotations

from typing import Any

from jobqueue.logs import get_logger
from jobqueue.redact import cover_text
from jobqueue.states import Outcome, State
from jobqueue.store.claims import Claim
from jobqueue.store.finish import Ending
from jobqueue.worker.inflight import InFlight
from jobqueue.worker.outcomes.task_signals import TaskSignals

ERROR_SHOWN = 500
log = get_logger()


class OutcomeEvents:
    """Logs outcomes as events with stable names; never arguments or results."""

    def __init__(self, task_signals: TaskSignals) -> None:
        self.task_signals = task_signals

    def written(self, inflight: InFlight, ending: Ending, state: str) -> None:
        """The outcome is in the row and its history."""
        claim = inflight.claim
        facts = {"job": claim.id, "task": claim.task, "queue": claim.queue}
        if ending.outcome is None:
            log.info("job_returned", **facts, reason=ending.reason)
            return
        facts["attempt"] = claim.attempts + 1
        self._say(ending, state, facts)
        if ending.traceback:
            log.debug("attempt_traceback", **facts, traceback=ending.traceback)
        self.task_signals.finished(inflight, ending, state)

    def _say(self, ending: Ending, state: str, facts: dict[str, Any]) -> None:
        error = f"{ending.error_class}: {ending.error_message}" if ending.error_class else ""
        error = cover_text(error)[:ERROR_SHOWN]
        match state:
            case State.SUCCEEDED:
                log.info("job_succeeded", **facts)
            case State.DEAD:
                log.error("job_dead", **facts, outcome=ending.outcome, error=error)
            case State.CANCELLED:
                log.info("job_cancelled", **facts, outcome=ending.outcome)
            case _ if ending.outcome is Outcome.INTERRUPTED:
                delay = round(ending.delay, 3)
                log.info("job_interrupted", **facts, reason=ending.reason, delay_seconds=delay)
            case _ if ending.outcome is Outcome.SNOOZED:
                log.info("job_snoozed", **facts, delay_seconds=round(ending.delay, 3))
            case _:
                delay = round(ending.delay, 3)
                log.warning("job_retry_scheduled", **facts, delay_seconds=delay, error=error)

    def refused(self, inflight: InFlight, ending: Ending, stands: str | None) -> None:
        """The token was refused: the claim was no longer ours and nothing was changed."""
        claim = inflight.claim
        facts = {
            "job": claim.id,
            "task": claim.task,
            "attempt": claim.attempts + 1,
            "wanted": ending.outcome,
            "recorded": stands,
        }
        if inflight.lost:  # the heartbeat has already logged the loss: one warning per loss
            log.info("outcome_came_late", **facts)
        else:
            log.warning("lease_lost", **facts)

    def given_up(self, claim: Claim) -> None:
        """Not written in time: the lease lapses, and the leader records the attempt as LOST."""
        log.error("outcome_not_recorded", job=claim.id, task=claim.task)

    def newer(self, claim: Claim) -> None:
        """Something that this code does not understand was made of the job while it ran: whether
        it waits again is not for this worker to say."""
        log.warning("outcome_left_to_newer", job=claim.id, task=claim.task)

    def unwritable(self, claim: Claim, error: Exception) -> None:
        """The database refuses to store even the failure: the lease lapses."""
        log.error("outcome_refused", job=claim.id, task=claim.task, exc_info=error)
