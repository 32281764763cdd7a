"""A thread outside the loop: receives signals, enforces deadlines, notices a blocked loop.

If a handler holds the interpreter lock, this thread never runs; the dead-man switch is for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from math import inf

from jobqueue import logs
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.worker.inflight import InFlight, InFlightJobs
from jobqueue.worker.process import signals as process_signals
from jobqueue.worker.process import stacks
from jobqueue.worker.process.deadman import DeadMan
from jobqueue.worker.process.stillness import Stillness

MOST_LAG_SECONDS = 1.0
# A third signal this soon after the second belongs to the same burst and is ignored. A burst is
# no longer than this, or a Ctrl-C held down would never count.
BURST_SECONDS, BURST_MAX_SECONDS = 0.1, 1.0
FORCED = 5
LOG_SECONDS = 0.2  # for events that wait for the project's handlers, at a hard exit
log = get_logger()


class Watchdog:
    """Started before the loop. `on_signal` and `on_block` are called on the loop."""

    def __init__(
        self,
        settings: Settings,
        registry: InFlightJobs,
        *,
        on_signal: Callable[[int], None],
        on_block: Callable[[InFlight, str, float], None],
    ) -> None:
        self.settings, self.registry = settings, registry
        self.on_signal, self.on_block = on_signal, on_block
        self.loop: asyncio.AbstractEventLoop | None = None
        self.first_stop_at: float | None = None  # monotonic
        self.deadline: float | None = None  # monotonic; the enforced end of the process
        # For an enforced end; once the last line is logged, the code in that line.
        self.code = FORCED
        # How late the loop may answer, checked as often. Well below the shortest lease.
        self.lag_seconds = min(MOST_LAG_SECONDS, settings.lease_seconds / 4)
        self._dead_man = DeadMan(settings.lease_seconds)
        self._stops, self._last_stop, self._counted_stop = 0, -BURST_SECONDS, 0.0
        self._answered = time.monotonic()
        self._blocked_since: float | None = None
        self._thawed_at = -inf  # when the process last ran again after it was frozen
        self._culprit: tuple[InFlight, str] | None = None
        self._early: list[int] = []  # signals that arrived before the loop
        self._lock = threading.Lock()
        self._main = threading.get_ident()
        self._ended = False

    @contextlib.contextmanager
    def running(self, *, signals: bool) -> Iterator[None]:
        """Watch while the block runs; call it in the loop's thread. With `signals` the process's
        signals are received here, and the former handlers restored at the end."""
        self._main = threading.get_ident()
        self._ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        with contextlib.ExitStack() as stack:
            stack.callback(self._ours.close)
            stack.callback(theirs.close)
            stack.enter_context(self._dead_man)
            if signals:
                stack.enter_context(process_signals.through(theirs.fileno()))
            thread.start()
            try:
                yield
            finally:
                self._ended = True
                self._dead_man.rest()
                theirs.shutdown(socket.SHUT_RDWR)
                thread.join()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop has started: from now on it must answer."""
        with self._lock:
            self._answered, self.loop = time.monotonic(), loop
            early, self._early = self._early, []
        for number in early:
            self.on_signal(number)

    def expect_end(self, moment: float) -> None:
        """Enforce the end of the process at this moment (monotonic). It only ever moves earlier."""
        with self._lock:
            self.deadline = min(self.deadline or moment, moment)
            self._dead_man.arm(self.deadline)

    def left(self, most: float, margin: float) -> float:
        """Return how long a last step may take: this long at most, and within the deadline."""
        if self.deadline is None:
            return most
        return max(min(self.deadline - margin - time.monotonic(), most), 0.0)

    def rearm(self) -> None:
        """Called on the loop with every beat, as a sign of life: move the dead-man switch."""
        self._dead_man.arm(self.deadline)

    # In the thread.

    def _run(self) -> None:
        while not self._ended:
            # If anything fails here (a log that cannot be written), the watch continues.
            with contextlib.suppress(Exception):
                self._turn()

    def _turn(self) -> None:
        start, seconds, stillness = time.monotonic(), self._wait_seconds(), Stillness()
        self._read_signals(seconds)
        now = time.monotonic()
        overslept = now - start - seconds
        if overslept > self.lag_seconds:
            self._nothing_ran(now, overslept, was_frozen=stillness.was_frozen(overslept))
        self._enforce(now)
        self._check_loop(now)

    def _nothing_ran(self, now: float, seconds: float, *, was_frozen: bool) -> None:
        """Not this thread either: the loop had no chance to answer."""
        self._answered, self._blocked_since = now, None
        if was_frozen:
            self._thawed_at = now
            log.warning("process_stalled", seconds=round(seconds, 2))
        else:
            self._enforce(now)  # before a log line, which may take its time
            log.warning("interpreter_held", seconds=round(seconds, 2))

    def _wait_seconds(self) -> float:
        job, trust_end = self._first_to_lapse()
        ends = [self.deadline, trust_end if job is not None else None]
        left = [end - time.monotonic() for end in ends if end is not None]
        return max(min([self.lag_seconds, *left]), 0.01)

    def _read_signals(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return
        for number in self._ours.recv(64):
            if number == signal.SIGUSR2:
                self._dead_man.write(f"stacks on request\n{stacks.everything(self.loop)}\n")
            elif number not in process_signals.STOPS or self._counts(time.monotonic()):
                self._pass_on(number)

    def _counts(self, now: float) -> bool:
        """Whether this TERM or INT counts. The third one ends the process here."""
        echo, self._last_stop = now - self._last_stop < BURST_SECONDS, now
        if echo and self._stops >= 2 and now - self._counted_stop < BURST_MAX_SECONDS:
            return False
        self._stops, self._counted_stop = self._stops + 1, now
        if self.first_stop_at is None:
            self.first_stop_at = now
            self.expect_end(now + self.settings.exit_seconds)
        if self._stops >= 3:
            self.exit_now("third signal")
        return True

    def _pass_on(self, number: int) -> None:
        with self._lock:
            if self.loop is None:
                self._early.append(number)
                return
        self._call_loop(self.on_signal, number)

    def _call_loop(self, function: Callable[..., None], *args: object) -> None:
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                self.loop.call_soon_threadsafe(function, *args)

    def _enforce(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline and not self._ended:
            self.exit_now("the deadline of the shutdown has passed")
        job, trust_end = self._first_to_lapse()
        if job is not None and now >= trust_end and not self._ended:
            why = "the event loop is blocked and " if self._blocked_since is not None else ""
            self.exit_now(f"{why}job {job} outlives the trust in its lease")

    def _check_loop(self, now: float) -> None:
        if self.loop is None:
            return
        lag = now - self._answered
        if lag > 2 * self.lag_seconds and self._blocked_since is None:
            self._blocked_since = self._answered
            self._log_block(lag)
        self._call_loop(self._answer)

    def _answer(self) -> None:
        """Called on the loop: it is alive."""
        self._answered = now = time.monotonic()
        if self._blocked_since is None:
            return
        seconds, self._blocked_since = now - self._blocked_since, None
        log.warning("event_loop_recovered", seconds=round(seconds, 2))
        if self._culprit is not None:
            (inflight, stack), self._culprit = self._culprit, None
            self.on_block(inflight, stack, seconds)

    def _log_block(self, lag: float) -> None:
        inflight, stack = self._find_culprit(), stacks.of_thread(self._main)
        self._culprit = None if inflight is None else (inflight, stack)
        log.error(
            "event_loop_blocked",
            seconds=round(lag, 2),
            job=inflight.claim.id if inflight else None,
            task=inflight.claim.task if inflight else None,
            stack=stack,
        )

    def _find_culprit(self) -> InFlight | None:
        current = asyncio.current_task(self.loop)
        if current is None:
            return None
        for inflight in self.registry:
            if inflight.task is current or current in (inflight.children or ()):
                return inflight
        return None

    def _first_to_lapse(self) -> tuple[int | None, float]:
        """Return the job whose handler must end first, and when; None if no handler runs."""
        first, least = None, inf
        for inflight in self.registry:
            if inflight.needs_lease and (end := self._trust_end(inflight.trusted_from)) < least:
                first, least = inflight.claim.id, end
        return first, least

    def _trust_end(self, trusted_from: float) -> float:
        """Another worker may claim the job after this, so the process must be gone. After a freeze
        that is over anyway, and its handlers get their time to clean up."""
        end = trusted_from + self.settings.trust_seconds
        return self._thawed_at + self.settings.cancel_seconds if self._thawed_at >= end else end

    def exit_now(self, why: str) -> None:
        """End the process now, with every stack on stderr. Nothing here may fail or hang."""
        with contextlib.suppress(BaseException):
            self._dead_man.arm(time.monotonic() + 1.0)  # in case what follows hangs after all
        with contextlib.suppress(BaseException):
            first = f"jobqueue worker {os.getpid()} leaves at once: {why}\n"
            self._dead_man.write(f"{first}{stacks.everything(self.loop)}\n")
        with contextlib.suppress(BaseException):
            logs.flush(LOG_SECONDS)
        os._exit(self.code)
