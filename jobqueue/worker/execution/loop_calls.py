"""Calls that other threads hand to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any


class LoopCalls:
    """Wakes the loop once for all calls that are waiting: each wake is a system call, at which the
    threads contend for the interpreter."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls: deque[Callable[[], Any]] = deque()
        self._is_woken = False

    def put(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
        """Called from any thread. Raises RuntimeError if the loop is closed."""
        self._calls.append(call)  # before the check: `_run` resets the flag before it empties this
        if not self._is_woken:
            try:
                self._is_woken = True
                loop.call_soon_threadsafe(self._empty, loop)
            except BaseException:
                self._is_woken = False  # or nothing would ever wake it again
                raise

    def _empty(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_woken = False
        while self._calls:
            loop.call_soon(self._calls.popleft(), context=self._context.copy())
