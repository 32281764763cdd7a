"""Until when a worker runs that nobody stops: drain mode, and --max-runtime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from jobqueue.store.connections import Session
from jobqueue.worker.idle_limits import IdleVerdict, IdleWatch
from jobqueue.worker.inflight import Registry
from jobqueue.worker.options import Orders
from jobqueue.worker.shutdown import CLOSE_SECONDS

OUT_OF_TIME = "max runtime"


class Limits:
    """Counted from here. `stop` starts the shutdown, with its reason."""

    def __init__(
        self, orders: Orders, session: Session, registry: Registry, stop: Callable[[str], None]
    ) -> None:
        self.orders, self.session, self.registry, self.stop = orders, session, registry, stop
        self.verdict: IdleVerdict | None = None
        self._watch: IdleWatch | None = None
        limit = orders.max_runtime
        self._end = None if limit is None else asyncio.get_running_loop().time() + limit

    @property
    def are_set(self) -> bool:
        return self.orders.until_idle or self._end is not None

    @property
    def code(self) -> int:
        """The exit code of a clean stop."""
        return 0 if self.verdict is None else self.verdict.code

    @contextlib.contextmanager
    def while_starting(self) -> Iterator[None]:
        """The database may keep the worker waiting; the time runs all the same."""
        timer = None
        if self._end is not None:
            timer = asyncio.get_running_loop().call_at(self._end, self._out_of_time)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    def _out_of_time(self) -> None:
        self.verdict = IdleVerdict(idle=False)
        self.stop(OUT_OF_TIME)

    async def run(self) -> None:
        """The service: returns when it has asked for the stop."""
        left = None
        if self._end is not None:
            left = max(self._end - asyncio.get_running_loop().time(), 0.0)
        if self.orders.until_idle:
            held = self.registry.__len__
            queues = list(self.orders.queues)
            self._watch = IdleWatch(self.session, queues, max_runtime=left, held=held)
            self.verdict = await self._watch.wait()
        elif left is not None:
            await asyncio.sleep(left)
        if self.verdict is not None and self.verdict.idle:
            self.stop("idle")
        else:
            self.verdict = self.verdict or IdleVerdict(idle=False)
            self.stop(OUT_OF_TIME)

    async def settle(self) -> None:
        """Jobs ended after the last look: ask once more who died."""
        if self._watch is not None and self.verdict is not None:
            self.verdict = await self._watch.settle(self.verdict, CLOSE_SECONDS)
