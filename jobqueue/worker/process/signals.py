"""The process's signals, led to a descriptor; and put back as they were."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

# QUIT stays with the system. USR1, which would end the process without a word, is ignored.
STOPS = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*STOPS, signal.SIGHUP, signal.SIGUSR2)
IGNORED = (signal.SIGUSR1,)
_former: dict[int, Any] = {}  # what stood there before, while signals are heard here
_forking = threading.local()


@contextlib.contextmanager
def through(descriptor: int) -> Iterator[None]:
    """Have the number of each signal written to the descriptor. In the main thread only."""
    ignored = [number for number in IGNORED if signal.getsignal(number) is signal.SIG_DFL]
    wakeup = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    for number in (*HANDLED, *ignored):
        _former[number] = signal.signal(number, _noted_elsewhere)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        _put_back()


def _noted_elsewhere(number: int, frame: FrameType | None) -> None:
    """The descriptor has carried the signal; this only replaces the default action."""


def _put_back() -> None:
    while _former:
        number, handler = _former.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


# What a handler forks shares the descriptor: a signal that ends such a child (a pool closing down)
# must neither stop its parent nor be swallowed. Until the child hears for itself, it hears nothing.


def _before_fork() -> None:
    if _former:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def _in_parent() -> None:
    if (mask := _forking.__dict__.pop("mask", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    if _former:
        with contextlib.suppress(ValueError):  # not in the main thread after all
            signal.set_wakeup_fd(-1)
            _put_back()
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
