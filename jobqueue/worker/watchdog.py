"""A thread outside the loop: hears the signals, enforces the deadline, sees a blocked loop.

Behind it stands faulthandler's timer, a thread in C, for a handler that holds the interpreter
lock: this thread then never runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import structlog

from jobqueue.conf import Settings
from jobqueue.worker import stacks
from jobqueue.worker.held import Registry

TICK_SECONDS = 1.0
LAG_WARN_SECONDS = 1.0
STOPS = (signal.SIGTERM, signal.SIGINT)
HEARD = (*STOPS, signal.SIGHUP, signal.SIGUSR2)
FORCED = 5
# The C thread cannot tell a frozen process from a blocked interpreter. It is set well behind the
# trust's end, so that a worker that was stopped and continued can go on; the fence held meanwhile.
DEAD_MAN_LEASES = 2.0
# The C thread comes after this one, which knows more to say.
DEAD_MAN_SECONDS = 0.5
log = structlog.get_logger("jobqueue")


class Watchdog:
    """Started before the loop, in the main thread; `on_signal` is called on the loop."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings, self.registry = settings, registry
        self.on_signal: Callable[[int], None] = lambda number: None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.deadline: float | None = None  # monotonic; the enforced end of the process
        self._stops = 0
        self._answered = time.monotonic()
        self._blocked_since: float | None = None
        self._main = threading.get_ident()
        self._ended = False
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    @contextlib.contextmanager
    def running(self, *, signals: bool) -> Iterator[None]:
        """Watch while the block runs. With `signals` the process's signals come here, and what
        was there before is put back at the end."""
        former = {}
        if signals:
            former = {number: signal.signal(number, _noted_elsewhere) for number in HEARD}
            wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        try:
            yield
        finally:
            self.rest()
            if signals:
                signal.set_wakeup_fd(wakeup)
                for number, handler in former.items():
                    signal.signal(number, handler)
            self._ended = True
            self._theirs.close()
            self._thread.join()
            self._ours.close()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop has started: from here on it must answer."""
        self._answered = time.monotonic()
        self.loop = loop

    def expect_end(self, seconds: float) -> None:
        """The shutdown has begun: the process is gone in so many seconds, whatever happens."""
        if self.deadline is None:
            self.deadline = time.monotonic() + seconds
        self.rearm()

    def rearm(self) -> None:
        """Called on the loop with every beat: move the dead-man switch, on a sign of life."""
        now = time.monotonic()
        horizon = now + (1 + DEAD_MAN_LEASES) * self.settings.lease_seconds
        if self.deadline is not None:
            horizon = min(horizon, self.deadline + DEAD_MAN_SECONDS)
        with contextlib.suppress(Exception):  # no usable stderr: the thread alone must do
            faulthandler.dump_traceback_later(max(horizon - now, 0.1), exit=True, file=_stderr())

    def rest(self) -> None:
        """The loop has ended in good order: no more dead-man switch."""
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ended:
            self._hear(self._wait_seconds())
            now = time.monotonic()
            if now - before > 3 * TICK_SECONDS:
                self._answered = now  # the whole process was frozen: the loop is not to blame
            before = now
            self._enforce(now)
            self._look_at_loop(now)

    def _wait_seconds(self) -> float:
        if self.deadline is None:
            return TICK_SECONDS
        return max(min(TICK_SECONDS, self.deadline - time.monotonic()), 0.01)

    def _hear(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return
        for number in self._ours.recv(64):
            if number == signal.SIGUSR2:
                _write(f"stacks on request\n{stacks.everything(self.loop)}\n")
                continue
            if number in STOPS:
                self._count_stop()
            self._call_loop(self.on_signal, number)

    def _count_stop(self) -> None:
        self._stops += 1
        if self.deadline is None:
            self.deadline = time.monotonic() + self.settings.exit_seconds
        if self._stops >= 3:
            self.leave("third signal")

    def _call_loop(self, function: Callable[..., None], *args: object) -> None:
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                self.loop.call_soon_threadsafe(function, *args)

    def _enforce(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.leave("the deadline of the shutdown has passed")

    def _look_at_loop(self, now: float) -> None:
        if self.loop is None:
            return
        lag = now - self._answered
        if lag > TICK_SECONDS + LAG_WARN_SECONDS and self._blocked_since is None:
            self._blocked_since = self._answered
            self._tell_of_block(lag)
        if self._blocked_since is not None and self._trust_is_over(now):
            self.leave("the event loop is blocked and a lease is no longer trusted")
        self._call_loop(self._answer)

    def _answer(self) -> None:
        self._answered = now = time.monotonic()
        if self._blocked_since is not None:
            blocked, self._blocked_since = now - self._blocked_since, None
            log.warning("event_loop_back", seconds=round(blocked, 2))

    def _tell_of_block(self, lag: float) -> None:
        current = asyncio.current_task(self.loop) if self.loop is not None else None
        held = next((h for h in self.registry if h.task is current), None) if current else None
        stack = stacks.of_thread(self._main)
        log.error(
            "event_loop_blocked",
            seconds=round(lag, 2),
            job=held.claim.id if held else None,
            task=held.claim.task if held else None,
            stack=stack,
        )
        if held is not None:
            held.blocked = stack

    def _trust_is_over(self, now: float) -> bool:
        since = self.registry.trusted_since()
        trust = self.settings.lease_seconds - self.settings.lease_margin_seconds
        return since is not None and now - since > trust and self.loop is not None

    def leave(self, why: str) -> None:
        """End the process now, with every stack on stderr. Nothing here may fail or hang."""
        with contextlib.suppress(BaseException):
            # The C thread ends the process even if writing the stacks hangs on a full pipe.
            faulthandler.dump_traceback_later(1.0, exit=True, file=_stderr())
        _write(f"jobqueue worker {os.getpid()} leaves at once: {why}\n")
        with contextlib.suppress(BaseException):
            _write(stacks.everything(self.loop) + "\n")
        os._exit(FORCED)


def _noted_elsewhere(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has told the watchdog; this only keeps the default action away."""


def _stderr() -> int:
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
    except (OSError, ValueError):
        return 2


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(_stderr(), text.encode("utf-8", "replace"))
