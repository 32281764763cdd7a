"""Why nothing ran: a frozen process, or a C call that held the interpreter."""

from __future__ import annotations

import resource
import time

# Whoever waits for the interpreter wakes 200 times a second to ask for it; a frozen thread does
# not. A thread's own switches are counted by Linux; elsewhere the process's time must do.
OWN = getattr(resource, "RUSAGE_THREAD", None)
ASKS_PER_SECOND = 20.0
BUSY_SHARE = 0.5


class Stillness:
    """Measures one wait of the calling thread."""

    def __init__(self) -> None:
        self._before = _measure()

    def was_frozen(self, seconds: float) -> bool:
        """Whether nothing happened in the `seconds` by which the wait was too long."""
        least = ASKS_PER_SECOND if OWN is not None else BUSY_SHARE
        return _measure() - self._before < least * seconds


def _measure() -> float:
    return time.process_time() if OWN is None else resource.getrusage(OWN).ru_nvcsw
