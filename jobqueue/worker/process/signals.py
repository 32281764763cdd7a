"""The process's signals: routed to the watchdog's descriptor, and restored afterwards.

`Shutdown.signalled` acts on them; the watchdog itself ends the process at the third."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

# QUIT keeps its default action. USR1, whose default ends the process silently, is ignored.
STOPS = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*STOPS, signal.SIGHUP, signal.SIGUSR2)
IGNORED = (signal.SIGUSR1,)
# Heard by a process that serves; one that is starting must not die of them.
LATER = (signal.SIGHUP, signal.SIGUSR2)
_former: dict[int, Any] = {}  # the former handlers, while ours are installed
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


@contextlib.contextmanager
def deaf(*, supervised: bool) -> Iterator[None]:
    """Until a worker listens to signals, and after it, HUP and USR2 do nothing. A supervisor starts
    its children with both blocked."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    quiet = [number for number in LATER if signal.getsignal(number) is signal.SIG_DFL]
    for number in quiet:
        signal.signal(number, signal.SIG_IGN)
    if supervised:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LATER)
    try:
        yield
    finally:
        for number in quiet:
            signal.signal(number, signal.SIG_DFL)


def _noted_elsewhere(number: int, frame: FrameType | None) -> None:
    """The descriptor carries the signal; this only replaces the default action."""


def _put_back() -> None:
    while _former:
        number, handler = _former.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


# A forked child shares the descriptor: a signal that ends it (a pool closing down) must neither
# stop its parent nor be swallowed. So signals are blocked until the child has handlers of its own.


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
