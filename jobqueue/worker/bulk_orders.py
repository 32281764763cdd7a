"""Operators' bulk orders: any worker continues them, alongside its jobs and without using a slot.

The work on the jobs is done by the web side's own code; no other module of the worker may import
it. It runs in a thread of its own that exists only while there is an order.
"""

from __future__ import annotations

import asyncio
import threading
import time

from jobqueue.logs import get_logger
from jobqueue.operations import orders
from jobqueue.store import bulk_orders
from jobqueue.store.connections import Session
from jobqueue.worker.threads.handler_thread import HandlerThread

WORK_SECONDS = 5.0  # then the loop decides whether to continue
REST_SECONDS = 60.0  # after an error, or where the database role may not read users' permissions
log = get_logger()


class BulkOrders:
    """The service: sleeps until the beat has seen an order."""

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds
        self.stopping = threading.Event()
        self._seen = asyncio.Event()
        self._rests_until = 0.0
        self._looked_at = 0.0

    async def check(self, session: Session, seconds: float) -> None:
        """Called after a beat, on its connection, at most once per poll."""
        now = time.monotonic()
        if self._seen.is_set() or now < max(self._rests_until, self._looked_at + self.poll_seconds):
            return
        self._looked_at = now
        if await session.call(bulk_orders.are_open, seconds):
            self._seen.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._seen.wait()
            thread = HandlerThread("bulk orders")
            try:
                while await asyncio.wrap_future(thread.submit(self._work, thread)):
                    pass
            finally:
                self._seen.clear()
                thread.close()

    def stop(self) -> None:
        """Start no further slice. The one in progress is a single transaction."""
        self.stopping.set()

    def _work(self, thread: HandlerThread) -> bool:
        """Runs in the thread. Returns whether to continue at once."""
        thread.prepare()
        try:
            return orders.work(WORK_SECONDS, self.stopping.is_set) and not self.stopping.is_set()
        except orders.RightsUnreadableError as error:
            log.warning("bulk_orders_left", error=str(error))
        except Exception:
            log.exception("bulk_order_failed")
        finally:
            thread.tidy()
        self._rests_until = time.monotonic() + REST_SECONDS
        return False
