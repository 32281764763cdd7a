"""Lease tokens: fresh for every claim, never sent twice."""

import os
import time
from uuid import UUID


def new_tokens(count: int) -> list[UUID]:
    """Return unique tokens shaped like UUIDv7.

    The leading time is for locality in the history's index alone; nothing reads it.
    """
    stamp = (time.time_ns() // 1_000_000) & ((1 << 48) - 1)
    noise = os.urandom(10 * count)
    return [
        UUID(int=_shape(stamp, int.from_bytes(noise[10 * i : 10 * i + 10], "big")))
        for i in range(count)
    ]


def _shape(stamp: int, noise: int) -> int:
    high, low = noise >> 68, noise & ((1 << 62) - 1)  # 12 and 62 random bits
    return stamp << 80 | 7 << 76 | high << 64 | 2 << 62 | low
