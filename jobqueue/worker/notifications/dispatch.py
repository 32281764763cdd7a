"""Which part of the worker reacts to which notification."""

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
    """Passes NOTIFY payloads on. Each is a hint; an unknown one is ignored."""

    def __init__(
        self,
        worker: str,
        *,
        on_ready: Callable[[str | None, int | None], None],
        on_scheduled: Callable[[float], None],
        on_cancel: Callable[[], None],
        on_vacant: Callable[[], None],
        on_died: Callable[[], None],
    ) -> None:
        self.worker = worker
        self.on_ready, self.on_scheduled, self.on_cancel = on_ready, on_scheduled, on_cancel
        self.on_vacant, self.on_died = on_vacant, on_died

    def check_everything(self) -> None:
        """Notifications may have been missed: check everything that they announce."""
        self.on_ready(None, None)
        self.on_vacant()
        self.on_cancel()

    def poll(self) -> None:
        """Notifications have stopped: whoever waits for one must poll from now on."""
        self.on_ready(None, None)

    def dispatch(self, payload: str) -> None:
        """Act on one notification. Anyone may send anything, so this never raises."""
        if message := parse(payload):
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        match message:
            case Ready(queue, priority):
                self.on_ready(queue, priority)
            case Resumed(queue):
                self.on_ready(queue, None)
            case Scheduled(at):
                self.on_scheduled(at)
            case Cancel(worker):
                if worker in (None, self.worker):
                    self.on_cancel()
            case LeaderVacant():
                self.on_vacant()
            case Died():
                self.on_died()
            case Paused():
                pass  # a claim reads it from the queue's row
