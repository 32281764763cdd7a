"""The events that the code under test makes, as structlog's own `capture_logs` would show them."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from jobqueue import logs


@contextlib.contextmanager
def captured(level: int = logging.INFO) -> Iterator[list[dict[str, Any]]]:
    """The list to which each event of this level is added at once; nobody else hears of them."""
    events: list[dict[str, Any]] = []

    def keep(logger: object, method: str, fields: dict[str, Any]) -> str:
        events.append({**fields, "log_level": method})
        return ""

    before, processors = logs.stdlib.level, list(logs.PROCESSORS)
    logs.stdlib.setLevel(level)
    logs.PROCESSORS[:] = [keep]
    try:
        yield events
    finally:
        logs.PROCESSORS[:] = processors
        logs.stdlib.setLevel(before)
