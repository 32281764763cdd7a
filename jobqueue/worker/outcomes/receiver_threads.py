"""A few threads that call the project's receivers: in order for each job, and bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from jobqueue.logs import get_logger
from jobqueue.worker.threads.handler_thread import HandlerThread

MOST_THREADS = 4
# Beyond this many waiting calls no jobs are claimed until the receivers have caught up.
MOST_WAITING = 1_000
# A call that takes longer is logged with its stack, and its thread is set aside.
CALL_SECONDS = 10.0
# Another thread is started once all others have been busy with one call for this long.
SLOW_SECONDS = 0.01
log = get_logger()

Call = Callable[[], object]


class ReceiverThread:
    """One thread, and the call it is making."""

    def __init__(self, number: int) -> None:
        self.handler_thread = HandlerThread(f"signals-{number}")
        self.is_busy = self.is_aside = False
        self.job: int | None = None
        self.since: float | None = None  # monotonic; None between two calls

    def seconds(self, now: float) -> float:
        """How many seconds its current call has taken so far."""
        return 0.0 if self.since is None else now - self.since


class ReceiverThreads:
    """Calls for one job are made in order; those for different jobs by any thread.

    With all threads set aside, further calls are dropped and counted; jobs keep running.
    """

    def __init__(self, stack_of: Callable[[int | None], str]) -> None:
        self._stack_of = stack_of
        self._lock = threading.Lock()
        self._calls: dict[int, deque[Call]] = {}  # by job: the first one is waiting or being made
        self._ready: deque[int] = deque()  # jobs whose first call is waiting
        self._threads: list[ReceiverThread] = []
        self._flushed: list[Future[None]] = []
        self._closed = False
        self.waiting = 0  # calls that have not ended
        self.dropped = 0

    def put(self, job: int, call: Call) -> None:
        """Queue this call after the job's other calls. Never waits."""
        with self._lock:
            if self._closed or self._are_all_aside():
                self.dropped += 1
                return
            if job in self._calls:
                self._calls[job].append(call)
            else:
                self._calls[job] = deque([call])
                self._ready.append(job)
            self.waiting += 1
            self._employ()

    def check(self) -> None:
        """Log the calls that take too long, and set their threads aside."""
        now = time.monotonic()
        with self._lock:
            late = [t for t in self._threads if not t.is_aside and t.seconds(now) > CALL_SECONDS]
            for thread in late:
                thread.is_aside = True
            if self._ready:
                self._employ()
            gone = late and self._are_all_aside()
        for thread in late:
            stack = self._stack_of(thread.handler_thread.thread.ident)
            seconds = round(thread.seconds(now), 1)
            log.error("signal_receiver_stuck", job=thread.job, seconds=seconds, stack=stack)
        if gone:
            log.error("signals_suspended", threads=len(self._threads), waiting=self.waiting)

    @property
    def is_behind(self) -> bool:
        """Whether so many calls are waiting that no jobs should be claimed."""
        if self.waiting <= MOST_WAITING:
            return False
        self.check()
        return not self._are_all_aside()

    @property
    def stacks(self) -> str:
        """Return the stacks of the current calls."""
        busy = [thread for thread in self._threads if thread.since is not None]
        return "\n".join(self._stack_of(thread.handler_thread.thread.ident) for thread in busy)

    def _are_all_aside(self) -> bool:
        return len(self._threads) == MOST_THREADS and all(t.is_aside for t in self._threads)

    def _employ(self) -> None:
        """Called under the lock: wake an idle thread, or start one if all have long been busy."""
        now = time.monotonic()
        idle = next((t for t in self._threads if not t.is_busy), None)
        busy = all(thread.seconds(now) > SLOW_SECONDS for thread in self._threads)
        if idle is None and busy and len(self._threads) < MOST_THREADS:
            idle = ReceiverThread(len(self._threads) + 1)
            self._threads.append(idle)
        if idle is not None:
            idle.is_busy = True
            idle.handler_thread.submit(self._work, idle)

    # In a thread.

    def _work(self, thread: ReceiverThread) -> None:
        while (call := self._next(thread)) is not None:
            try:
                thread.handler_thread.prepare()
                call()
            except BaseException:  # also when a receiver calls sys.exit
                log.exception("signal_not_sent")
            finally:
                thread.handler_thread.tidy()
            del call
            self._ended(thread)

    def _next(self, thread: ReceiverThread) -> Call | None:
        with self._lock:
            if not self._ready or self._closed:
                thread.is_busy = False
                return None
            thread.job = self._ready.popleft()
            thread.since = time.monotonic()
            return self._calls[thread.job][0]

    def _ended(self, thread: ReceiverThread) -> None:
        with self._lock:
            seconds, thread.since = thread.seconds(time.monotonic()), None
            was_aside, thread.is_aside = thread.is_aside, False
            job, thread.job = thread.job, None
            assert job is not None  # noqa: S101
            calls = self._calls[job]
            calls.popleft()
            if calls:
                self._ready.append(job)
            else:
                del self._calls[job]
            self.waiting -= 1
            flushed: list[Future[None]] = []
            if self.waiting == 0:
                flushed, self._flushed = self._flushed, []
        if was_aside:
            log.warning("signal_receiver_returned", job=job, seconds=round(seconds, 1))
        for future in flushed:
            future.set_result(None)

    # The end.

    def flush(self) -> Future[None] | None:
        """Return a future that is done when every call was made; None if they already were."""
        with self._lock:
            if self.waiting == 0:
                return None
            future: Future[None] = Future()
            self._flushed.append(future)
            return future

    async def end(self, seconds: float) -> None:
        """Give the receivers the last outcomes, waiting this many seconds at most."""
        if (flushed := self.flush()) is not None:
            await asyncio.wait({asyncio.wrap_future(flushed)}, timeout=max(seconds, 0))
        self.close()
        if self.is_stuck:
            log.error("signal_receivers_abandoned", stack=self.stacks)

    def close(self) -> None:
        """Begin no further call. Waiting and hanging calls are dropped and counted; the threads end
        when their calls do. Harmless the second time."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.dropped += self.waiting
            for future in self._flushed:
                future.cancel()
        for thread in self._threads:
            thread.handler_thread.close()

    @property
    def is_stuck(self) -> bool:
        """Whether a call has not returned."""
        return any(thread.since is not None for thread in self._threads)
