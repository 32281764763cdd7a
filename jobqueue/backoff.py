"""How long a failed job waits before its next attempt. Pure."""

import random
from collections.abc import Callable

JITTER = 0.2

Backoff = float | Callable[[int], float]


def delay(
    failures: int,
    *,
    base: float,
    ceiling: float,
    rule: Backoff | None = None,
    jitter: float | None = None,
) -> float:
    """Return the seconds to wait after `failures` counted failures (1 after the first).

    `base * 2**(failures - 1)` unless `rule` says otherwise: a number replaces the base, a callable
    of the failure count replaces the whole curve. Capped by `ceiling`, then times 0.8 to 1.2.
    Symmetric jitter, because full jitter makes the first retries immediate.
    """
    if callable(rule):
        seconds = float(rule(failures))
        if not seconds >= 0:  # also refuses NaN
            raise ValueError(f"backoff returned {seconds!r}; it must return seconds, zero or more.")
    else:
        start = base if rule is None else rule
        # The exponent is capped: 2**1024 does not fit a float, and any ceiling is below 2**62.
        seconds = start * 2.0 ** min(max(failures, 1) - 1, 62)
    spread = random.uniform(-JITTER, JITTER) if jitter is None else jitter  # noqa: S311
    return min(seconds, ceiling) * (1 + spread)
