"""structlog as this app sets it up: JSON lines, or readable ones on a terminal, to stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


def configure(level: int = logging.INFO, *, force: bool = False) -> None:
    """Set structlog up, unless the project has done so itself. Called when Django starts."""
    if structlog.is_configured() and not force:
        return
    terminal = sys.stderr is not None and sys.stderr.isatty()
    structlog.configure(
        processors=[*_SHARED, _readable() if terminal else _as_json],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_StderrFactory(),
        cache_logger_on_first_use=True,
    )


def contained(processor: Processor, key: str | None = None) -> Processor:
    """Skip a processor that fails: logging never breaks the work. And one that has nothing to do
    with an event without this key."""

    def guarded(logger: WrappedLogger, method: str, event: EventDict) -> Any:
        if key is not None and key not in event:
            return event
        try:
            return processor(logger, method, event)
        except structlog.DropEvent:
            raise
        except Exception:
            return event

    return guarded


def _readable() -> Processor:
    render = structlog.dev.ConsoleRenderer()

    def readable(logger: WrappedLogger, method: str, event: EventDict) -> str:
        try:
            return str(render(logger, method, dict(event)))
        except Exception:  # a value without a text of its own
            return _as_json(logger, method, event)

    return readable


def _as_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    try:
        return _encode(event)
    except Exception:
        return json.dumps({"event": str(event.get("event")), "level": method, "unprintable": True})


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


_encode = json.JSONEncoder(default=_text).encode


class _StderrLogger:
    """Writes a whole line at once; a broken stderr is nobody's problem."""

    def msg(self, message: str) -> None:
        if _waiting.lines is not None:
            _waiting.lines.append(message)
        else:
            _write(message)

    debug = info = warning = error = critical = exception = fatal = log = msg


class _Waiting(threading.local):
    lines: list[str] | None = None


_waiting = _Waiting()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Write the lines of this block at its end, in one go: for many events of one moment."""
    lines: list[str] = []
    _waiting.lines = lines
    try:
        yield
    finally:
        _waiting.lines = None
        if lines:
            _write("\n".join(lines))


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text + "\n")


class _StderrFactory:
    def __call__(self, *args: Any) -> _StderrLogger:
        return _StderrLogger()


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    contained(structlog.processors.add_log_level),
    contained(structlog.processors.StackInfoRenderer(), "stack_info"),
    contained(structlog.processors.TimeStamper(fmt="iso", utc=True)),
    contained(structlog.processors.format_exc_info, "exc_info"),
]
