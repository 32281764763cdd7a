"""At most so many daemon threads for calls that run beside the loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from jobqueue.worker.threads.handler_thread import HandlerThread

type Call = Callable[[HandlerThread], None]


class CallPool:
    """Threads are started when they are needed, and stay until the end."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.threads: list[HandlerThread] = []
        self._idle: list[HandlerThread] = []
        self._waiting: deque[Call] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, call: Call) -> None:
        """Have this called in one of the threads, which it is given."""
        with self._lock:
            if self._closed:
                raise RuntimeError("The worker has ended: no call can be made in a thread.")
            if self._idle:
                thread = self._idle.pop()
            elif len(self.threads) < self.most:
                thread = HandlerThread(f"{self.name}-{len(self.threads) + 1}")
                self.threads.append(thread)
            else:
                self._waiting.append(call)
                return
        thread.submit(self._make, thread, call)

    def _make(self, thread: HandlerThread, call: Call) -> None:
        try:
            call(thread)
        finally:
            del call
            with self._lock:
                following = self._waiting.popleft() if self._waiting else None
                if following is None:
                    self._idle.append(thread)
            if following is not None:  # a call of its own: a cancel of this one's query is over
                thread.submit(self._make, thread, following)

    def renew(self) -> None:
        """Use fresh connections, after the current call of each thread."""
        for thread in list(self.threads):
            thread.stale = True
            thread.discard()

    def close(self) -> None:
        """Let each thread end after its last call; there is no further one."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for thread in list(self.threads):
            thread.close()
