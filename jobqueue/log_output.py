"""The output of a process that is ours, where the project has set up none: a line an event on
stderr, JSON or readable."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog

from jobqueue.log_texts import exception_text, for_terminal, text_of

TEXT, JSON = "text", "json"
Fields = dict[str, Any]
Render = Callable[[str, Fields], str]


class Output:
    """Renders an event and writes its line; neither ever fails."""

    def __init__(self, style: str | None = None) -> None:
        """Without a style: readable on a terminal, JSON elsewhere."""
        if style is None:
            style = TEXT if sys.stderr is not None and sys.stderr.isatty() else JSON
        self._render: Render = _readable() if style == TEXT else as_json

    def write(self, level: str, fields: Mapping[str, Any]) -> None:
        shown = _stamp(None, level, {**fields, "level": level})
        if exc_info := shown.pop("exc_info", None):
            shown["exception"] = exception_text(exc_info)
        _say(self._render(level, shown))


def as_json(level: str, fields: Fields) -> str:
    try:
        return _encode(fields)
    except Exception:
        return json.dumps({"event": str(fields.get("event")), "level": level, "unprintable": True})


def _readable() -> Render:
    render = structlog.dev.ConsoleRenderer()

    def readable(level: str, fields: Fields) -> str:
        try:
            return str(render(None, level, for_terminal(fields)))
        except Exception:  # a value that JSON does not know
            return as_json(level, fields)

    return readable


_encode = json.JSONEncoder(default=text_of).encode
_stamp: Any = structlog.processors.TimeStamper(fmt="iso", utc=True)


class _Waiting(threading.local):
    lines: list[str] | None = None


_waiting = _Waiting()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Write the lines of this block in one go at its end: for many events at once."""
    lines: list[str] = []
    _waiting.lines = lines
    try:
        yield
    finally:
        _waiting.lines = None
        if lines:
            _write("\n".join(lines))


def _say(line: str) -> None:
    if _waiting.lines is not None:
        _waiting.lines.append(line)
    else:
        _write(line)


def _write(text: str) -> None:
    """Write a whole line at once; a broken stderr is ignored."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text + "\n")
