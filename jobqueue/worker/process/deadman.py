"""The last guard: a timer in C that ends the process when Python code can no longer run."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import stat
import sys
import time
from types import TracebackType

# The timer cannot distinguish a frozen process from a blocked interpreter. It fires well after
# the leases are no longer safe, so that a worker that was stopped and continued can carry on; its
# writes were fenced meanwhile.
BEHIND_LEASES, BEHIND_SECONDS = 2.0, 60.0
# It fires after the watchdog, whose report says more.
AFTER_DEADLINE_SECONDS = 0.5
WRITE_SECONDS = 1.0


class DeadMan:
    """faulthandler's timer, which writes every stack and exits with 1 unless it is reset in time.

    Its descriptor never blocks, so a full stderr pipe cannot hold up the exit.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._horizon = lease_seconds + max(BEHIND_LEASES * lease_seconds, BEHIND_SECONDS)
        self._own: int | None = None
        self._resting = True

    def __enter__(self) -> DeadMan:
        self._own = _open_again(_stderr())
        self._resting = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.rest()
        if self._own is not None:
            os.close(self._own)
            self._own = None

    @property
    def descriptor(self) -> int:
        return _stderr() if self._own is None else self._own

    def arm(self, deadline: float | None) -> None:
        """Reset the timer: to some leases from now, or just after the deadline (monotonic)."""
        if self._resting:
            return
        seconds = self._horizon
        if deadline is not None:
            seconds = min(seconds, deadline + AFTER_DEADLINE_SECONDS - time.monotonic())
        with contextlib.suppress(Exception):  # no usable stderr: the watchdog is the only guard
            faulthandler.dump_traceback_later(max(seconds, 0.1), exit=True, file=self.descriptor)

    def rest(self) -> None:
        """Disarm the timer: the loop has ended cleanly."""
        self._resting = True
        faulthandler.cancel_dump_traceback_later()

    def write(self, text: str) -> None:
        """Write to stderr, for at most a second: its reader may have stopped reading."""
        poll, data = select.poll(), memoryview(text.encode("utf-8", "replace"))
        poll.register(self.descriptor, select.POLLOUT)
        end = time.monotonic() + WRITE_SECONDS
        with contextlib.suppress(OSError):
            while data and (left := end - time.monotonic()) > 0:
                if poll.poll(left * 1000):
                    data = data[os.write(self.descriptor, data[: select.PIPE_BUF]) :]


def _stderr() -> int:
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
    except (OSError, ValueError):
        return 2


def _open_again(descriptor: int) -> int | None:
    """Reopen the pipe, since making our own descriptor non-blocking would change stderr's too."""
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        pass
    return None
