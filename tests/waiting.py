"""Waits for facts, with a deadline; never for time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(
    fact: Callable[[], Any | Awaitable[Any]], seconds: float = 15, every: float = 0.01
) -> Any:
    """Poll until `fact()` is true, and return it."""
    end = time.monotonic() + seconds
    while True:
        value = fact()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not so within {seconds} s: {inspect.getsource(fact).strip()}")
        await asyncio.sleep(every)
