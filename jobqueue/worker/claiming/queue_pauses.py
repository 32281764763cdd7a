"""After a round that was not full its queue is left alone for a moment; the others are not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from jobqueue.clock import loop_time
from jobqueue.worker.claiming.queue_selector import QueueSelector
from jobqueue.worker.claiming.scan_cursor import ScanCursor

# After a round that found fewer jobs than it asked for: a burst of wakes costs one more round.
PAUSE_SECONDS = 0.006
# The web side leaves out further wakes for this long after one (`jobqueue.notify`). The pause is
# longer, so that the next round sees those jobs.
THIN_SECONDS = 0.005


class QueuePauses:
    """The pauses, and what they must not miss."""

    def __init__(
        self, selector: QueueSelector, cursor: ScanCursor, on_ready: Callable[[], None]
    ) -> None:
        """`on_ready`: a queue is to be asked again."""
        self.selector, self.cursor, self.on_ready = selector, cursor, on_ready
        self._woken_at: dict[str | None, float] = {}  # by queue; None: all of them

    def note_wake(self, queue: str | None) -> None:
        """A wake for this queue; None: for all."""
        self._woken_at[queue] = loop_time()

    def forget_old(self) -> None:
        """Names come and go."""
        now = loop_time()
        self._woken_at = {q: at for q, at in self._woken_at.items() if now - at < 1 + THIN_SECONDS}

    async def after_partial(
        self, queue: str, sent: float, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """The round that was sent then was not full. Sleep, unless other queues are to be asked."""
        seconds = PAUSE_SECONDS * random.uniform(0.9, 1.1)  # noqa: S311
        if self.selector.has_others(queue):
            self.selector.rest(queue)
            asyncio.get_running_loop().call_later(seconds, self._end_rest, queue, sent)
        else:
            await sleep(seconds)
            self._look_again(queue, sent)

    def _end_rest(self, queue: str, sent: float) -> None:
        self._look_again(queue, sent)
        if self.selector.end_rest(queue):
            self.on_ready()

    def _look_again(self, queue: str, sent: float) -> None:
        woken = max(self._woken_at.get(queue, 0.0), self._woken_at.get(None, 0.0))
        if sent < woken + THIN_SECONDS:  # the wake of a later job may have been skipped
            self.selector.mark_ready(queue)
        elif (seconds := self.cursor.seconds_to_full_scan(queue, sent)) > 0:
            asyncio.get_running_loop().call_later(seconds, self._mark_ready, queue)

    def _mark_ready(self, queue: str) -> None:
        if self.selector.mark_ready(queue):
            self.on_ready()
