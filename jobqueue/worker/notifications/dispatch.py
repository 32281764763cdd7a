"""What reaches this worker from outside its loop, and whom it concerns."""

from __future__ import annotations

from collections.abc import Callable

from jobqueue.notifications import (
    Cancel,
    Died,
    LeaderVacant,
    Message,
    Paused,
    Ready,
    Resumed,
    Scheduled,
    parse,
)


class Dispatcher:
    """Hears NOTIFY payloads; each is a hint, and whatever is not understood is ignored."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.on_ready: Callable[..., None] = lambda queue, priority=None: None
        self.on_beat: Callable[[], None] = lambda: None
        self.on_vacant: Callable[[], None] = lambda: None
        self.on_scheduled: Callable[[float], None] = lambda at: None
        self.on_died: Callable[[], None] = lambda: None

    def hear(self, payload: str) -> None:
        """Act upon one notification. Anybody may send anything: nothing is raised for it."""
        if message := parse(payload):
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        match message:
            case Ready(queue, None) | Resumed(queue):
                self.on_ready(queue)
            case Ready(queue, priority):
                self.on_ready(queue, priority)
            case Scheduled(at):
                self.on_scheduled(at)
            case Cancel(worker):
                if worker in (None, self.worker):
                    self.on_beat()
            case LeaderVacant():
                self.on_vacant()
            case Died():
                self.on_died()
            case Paused():
                pass  # a claim reads it from the queue's row
