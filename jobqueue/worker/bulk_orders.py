"""Operators' bulk orders: any worker goes on with them, beside its jobs and without a slot.

What is done to the jobs is the web side's own code, which this module alone of the worker may
import. It runs in a thread of its own that is there only while an order is.
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

WORK_SECONDS = 5.0  # then it is asked again whether to go on
REST_SECONDS = 60.0  # after an error, or where the role may not read who has which right
log = get_logger()


class BulkOrders:
    """The service: sleeps until the beat has seen an order."""

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds
        self.stopping = threading.Event()
        self._seen = asyncio.Event()
        self._rests_until = 0.0
        self._looked_at = 0.0

    async def run_slices(self, session: Session, seconds: float) -> None:
        """Behind a beat, on its connection, at most once in a poll."""
        now = time.monotonic()
        if self._seen.is_set() or now < max(self._rests_until, self._looked_at + self.poll_seconds):
            return
        self._looked_at = now
        if await session.call(bulk_orders.are_open, seconds):
            self._seen.set()

    async def run(self) -> None:
        """Goes on until it is cancelled."""
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
        """No further slice; the one that runs is one transaction."""
        self.stopping.set()

    def _work(self, thread: HandlerThread) -> bool:
        """In the thread: return whether to go on at once."""
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
