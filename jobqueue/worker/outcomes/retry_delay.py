"""How long a failed attempt waits for the next one."""

from __future__ import annotations

from django.utils.module_loading import import_string

from jobqueue import backoff
from jobqueue.conf import Settings
from jobqueue.exceptions import RetryLater, check_delay
from jobqueue.logs import get_logger
from jobqueue.worker.inflight import InFlight
from jobqueue.worker.outcomes.attempt_options import Options

log = get_logger()


def retry_delay(
    inflight: InFlight, error: BaseException, options: Options, settings: Settings
) -> float:
    """Return the seconds that the error, the call or the task asks for. What breaks here falls back
    to the setting."""
    try:
        if isinstance(error, RetryLater):
            return check_delay("RetryLater", error.seconds)
        rule = options.backoff
        if isinstance(rule, str):
            rule = import_string(rule)
        base, ceiling = settings.backoff_base_seconds, settings.backoff_max_seconds
        return backoff.delay(inflight.claim.failures + 1, base=base, ceiling=ceiling, rule=rule)
    except BaseException:
        log.warning(
            "backoff_failed", job=inflight.claim.id, task=inflight.claim.task, exc_info=True
        )
        return default_retry_delay(inflight, settings)


def default_retry_delay(inflight: InFlight, settings: Settings) -> float:
    """Return the seconds that the settings say."""
    base, ceiling = settings.backoff_base_seconds, settings.backoff_max_seconds
    return backoff.delay(inflight.claim.failures + 1, base=base, ceiling=ceiling)
