"""How long to wait after a failed attempt. The formula is `jobqueue.backoff.delay`."""

from __future__ import annotations

from jobqueue import tasks
from jobqueue.conf import Settings
from jobqueue.exceptions import RetryLater, check_delay
from jobqueue.logs import get_logger
from jobqueue.worker.inflight import InFlight
from jobqueue.worker.outcomes.attempt_options import Options

log = get_logger()


def retry_delay(
    inflight: InFlight,
    error: BaseException,
    options: Options,
    settings: Settings,
    *,
    failures: int | None = None,
) -> float:
    """Return the seconds that the error, the call or the task asks for. If its rule fails, the
    setting's rule applies. `failures`: how many to reckon with; None: the job's own."""
    if failures is None:
        failures = inflight.claim.failures + 1
    try:
        if isinstance(error, RetryLater):
            return check_delay("RetryLater", error.seconds)
        return tasks.retry_delay(options.backoff, failures, settings)
    except BaseException:
        log.warning(
            "backoff_failed", job=inflight.claim.id, task=inflight.claim.task, exc_info=True
        )
        return tasks.retry_delay(None, failures, settings)


def default_retry_delay(inflight: InFlight, settings: Settings) -> float:
    """Return the seconds by the settings' rule."""
    return tasks.retry_delay(None, inflight.claim.failures + 1, settings)
