"""What this worker makes READY itself: scheduled jobs that are due, parked ones that it knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jobqueue.clock import loop_time
from jobqueue.worker.claiming.parked_jobs import ParkedJobs
from jobqueue.worker.claiming.promotion_timer import PromotionTimer
from jobqueue.worker.row_batches import RowsAside, promote

PROMOTE_LIMIT = 500


class Promotions:
    """Both are claimed here at once, if there is room."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        parked: ParkedJobs,
        *,
        on_ready: Callable[[str], bool],
        notify_ready: Callable[[str], None],
    ) -> None:
        """`call` runs a verb on the claim's connection. `on_ready`: jobs of this queue can be
        claimed; it returns whether this worker serves the queue. `notify_ready` wakes the others.
        """
        self.call, self.parked = call, parked
        self.on_ready, self.notify_ready = on_ready, notify_ready
        self.timer = PromotionTimer()
        self._aside = RowsAside("promote")

    @property
    def next(self) -> float:
        """When to promote next, by the loop's clock, if there is room."""
        return min(self.timer.next, self.parked.due)

    async def promote_due(self, *, notify: bool = False) -> None:
        """Make due jobs READY. Other workers are notified if there is no room for them here."""
        try:
            queues = await promote(self.call, self._aside, PROMOTE_LIMIT)
        except Exception:
            self.timer.add(0.0, loop_time())  # they are still due
            raise
        if len(queues) == PROMOTE_LIMIT:
            self.timer.add(0.0, loop_time())
        for queue in set(queues):
            is_served = self.on_ready(queue)
            if notify or not is_served:
                self.notify_ready(queue)

    async def promote_parked(self, room: int) -> None:
        """Make parked jobs READY for the free slots, if it is time and this code knows them."""
        if room > 0 and self.parked.due <= loop_time():
            for queue in set(await self.parked.promote(self.call, room)):
                self.on_ready(queue)
