"""The exceptions that end jobs, for receivers of `task_finished` that look at `sys.exc_info()`."""

from __future__ import annotations

import threading
import traceback
from weakref import WeakSet

from django.conf import settings

from jobqueue.states import Outcome
from jobqueue.store.claims import Claim
from jobqueue.store.finish import Ending
from jobqueue.worker.inflight import InFlight
from jobqueue.worker.outcomes import error_text
from jobqueue.worker.outcomes.heard import are_failures_heard

# An exception may hold much, and a slow receiver lets them pile up.
MOST_KEPT = 100


class LastError:
    """One such exception, until it was sent."""

    __slots__ = ("__weakref__", "error")

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def forget(self) -> None:
        """Nobody will look at it again."""
        error_text.forget(self.error)


class LastErrors:
    """Keeps what will be heard, and lets go of everything else."""

    def __init__(self) -> None:
        self._kept: WeakSet[LastError] = WeakSet()
        self._lock = threading.Lock()  # handlers end in many threads

    def settle(self, inflight: InFlight, ending: Ending, error: BaseException) -> None:
        """The attempt has ended with this error: keep it if it ends the job and somebody hears of
        it. The local variables in its frames stay only with DEBUG: they hold the handler's data."""
        if _ends_job(inflight.claim, ending) and are_failures_heard():
            with self._lock:
                if len(self._kept) < MOST_KEPT:
                    inflight.keep_error(kept := LastError(error))
                    self._kept.add(kept)
        if inflight.last_error is None:
            error_text.forget(error)
            return
        error.__traceback__ = error_text.without_own_frames(error.__traceback__)
        if not settings.DEBUG:
            for each in error_text.related(error):
                traceback.clear_frames(each.__traceback__)


def _ends_job(claim: Claim, ending: Ending) -> bool:
    counts = ending.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
    return counts and (ending.final or claim.failures + 1 >= claim.max_attempts)
