"""A thread that makes the calls which end in the project's log handlers."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from queue import Empty, Full, Queue

MOST_WAITING = 10_000


class Delivery:
    """Takes calls from any thread without waiting, and makes them in a thread of its own, each in
    the context in which it was given."""

    def __init__(
        self, *, on_dropped: Callable[[int], None], on_end: Callable[[Delivery], None]
    ) -> None:
        """In the thread: `on_dropped` logs how many calls were dropped; `on_end`: nothing keeps the
        handlers busy any more."""
        self._on_dropped, self._on_end = on_dropped, on_end
        self._calls: Queue[tuple[contextvars.Context, Callable[[], object]] | None] = Queue(
            MOST_WAITING
        )
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.dropped = self._dropped_logged = 0
        self._notice_dropped = False
        self.is_closing = False  # whoever begins to deliver now needs another one
        self.is_stuck = False  # a handler kept the thread beyond the end

    def put(self, call: Callable[[], object]) -> None:
        """Queue this call; it is dropped and counted if far too many are waiting, or if a handler
        hangs that the end did not wait for."""
        try:
            if self.is_stuck:
                raise Full
            self._calls.put_nowait((contextvars.copy_context(), call))
        except Full:
            self.dropped += 1
            if threading.current_thread() is self._thread:
                self._notice_dropped = True
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        is_last = False
        while not (is_last and self._calls.empty()):
            if (item := self._calls.get()) is None:
                is_last = True
                continue
            context, call = item
            with contextlib.suppress(BaseException):  # also a handler that raises SystemExit
                context.run(call)
            del item, context, call
            if not self.is_stuck:
                self._log_dropped()
        self._on_end(self)
        if self.is_stuck:  # the handler has come back after all
            self._log_dropped()

    def _log_dropped(self) -> None:
        """Where there is room for it: this event goes through the same queue."""
        if self.dropped == self._dropped_logged or self._calls.qsize() > MOST_WAITING // 2:
            return
        number, self._notice_dropped = self.dropped - self._dropped_logged, False
        self._on_dropped(number)
        if not self._notice_dropped:
            self._dropped_logged += number

    def flush(self, seconds: float) -> bool:
        """Wait until everything put so far is delivered; return whether it is."""
        if self._thread is None or not self._thread.is_alive():
            return True
        end, done = time.monotonic() + seconds, threading.Event()
        try:
            self._calls.put((contextvars.Context(), done.set), timeout=max(seconds, 0))
        except Full:
            return False
        return done.wait(max(end - time.monotonic(), 0))

    def close(self, seconds: float) -> bool:
        """Flush, then end the thread. What is still waiting is dropped and counted."""
        self.is_stuck = not self.flush(seconds)
        if self.is_stuck:
            with contextlib.suppress(Empty):
                while True:
                    self._calls.get_nowait()
                    self.dropped += 1
        self._calls.put(None)
        return not self.is_stuck
