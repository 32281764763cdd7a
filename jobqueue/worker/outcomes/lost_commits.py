"""An atomic handler whose connection was lost, or whose transaction the server ended, at COMMIT."""

from __future__ import annotations

from itertools import takewhile

from jobqueue.conf import Settings
from jobqueue.exceptions import CommitLost
from jobqueue.payload import clean
from jobqueue.states import Outcome, Reason
from jobqueue.store.finish import Ending
from jobqueue.worker.inflight import InFlight, Stop
from jobqueue.worker.outcomes import classify, error_text, retry_delay
from jobqueue.worker.outcomes.attempt_options import Options

# In a row; from then on they count. The first must not: at a planned failover it would end every
# running job that has one attempt.
COUNTED = 3
ERROR_CLASS = f"{CommitLost.__module__}.{CommitLost.__qualname__}"


def classified(
    inflight: InFlight, error: BaseException, options: Options, settings: Settings
) -> Ending:
    """Return what is written if the commit did not land: it waits as failures do, longer each time
    in a row. What a shutdown interrupts goes back at once."""
    if inflight.stop_reason is Stop.SHUTDOWN:
        return classify.interrupted(inflight)
    before = takewhile(lambda past: past.error_class == ERROR_CLASS, reversed(inflight.past))
    in_a_row = 1 + sum(1 for _ in before)
    delay = retry_delay.retry_delay(inflight, error, options, settings, failures=in_a_row)
    message = f"{Reason.COMMIT_LOST}: {error_text.message_of(error)}"
    ending = classify.failed(
        inflight,
        error,
        delay=max(delay, classify.LEAST_SECONDS),
        reason=Reason.COMMIT_LOST,
        error_class=ERROR_CLASS,
        message=clean(message, error_text.MESSAGE_LIMIT),
    )
    return ending if in_a_row >= COUNTED else ending._replace(outcome=Outcome.INTERRUPTED)
