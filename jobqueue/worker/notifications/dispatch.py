"""What reaches this worker from outside its loop, and whom it concerns."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

LAST_MOMENT = 253_402_300_800  # the year 10000, in epoch seconds; also keeps NaN out


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
        try:
            message = json.loads(payload)
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict):
            self._tell(message)

    def _tell(self, message: dict[str, Any]) -> None:
        match message:
            case {"kind": "ready", "queue": str(queue), "priority": int(priority)}:
                self.on_ready(queue, priority)
            case {"kind": "ready" | "resumed", "queue": str(queue)}:
                self.on_ready(queue)
            case {"kind": "ready" | "resumed"}:
                self.on_ready(None)
            case {"kind": "scheduled", "at": int() | float() as at} if abs(at) < LAST_MOMENT:
                self.on_scheduled(float(at))
            case {"kind": "cancel", "worker": str(worker)}:
                if worker == self.worker:
                    self.on_beat()
            case {"kind": "cancel"}:
                self.on_beat()
            case {"kind": "leader"}:
                self.on_vacant()
            case {"kind": "died"}:
                self.on_died()
