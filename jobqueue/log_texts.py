"""What a log line may show of its event: secrets covered, and on a terminal nothing raw."""

from __future__ import annotations

import logging
import traceback
from functools import lru_cache
from types import NoneType
from typing import Any

from jobqueue.payload import clean
from jobqueue.redact import (
    COVER,
    cover,
    cover_text,
    is_secret,
    listed_words,
    printable,
)

FIELD_LIMIT, EXCEPTION_LIMIT = 20_000, 100_000  # characters
SHORT = 200  # what is shorter is remembered
NUMBERS = (int, float, bool, NoneType)
RAW = ("event", "exc_info")  # an event's own name; what its traceback is made from
Fields = dict[str, Any]


def covered(fields: Fields) -> Fields:
    """Return an event's fields as every output may show them, too long texts cut."""
    shown, listed = dict(fields), listed_words()
    for name, value in fields.items():
        kind = type(value)
        if kind is str and name not in RAW:
            short = len(value) <= SHORT
            shown[name] = _short(name, value, listed) if short else _covered(name, value)
        elif kind not in NUMBERS and name not in RAW:
            shown[name] = _covered(name, value)
    return shown


@lru_cache(maxsize=1024)
def _short(name: str, value: str, listed: frozenset[str]) -> Any:
    """Names of tasks and queues come again and again."""
    return _covered(name, value)


def _covered(name: str, value: Any) -> Any:
    if is_secret(name):
        return COVER
    match value:
        case str():
            return cover_text(value if len(value) <= FIELD_LIMIT else clean(value, FIELD_LIMIT))
        case list() | dict():
            return cover(value)
        case tuple():
            return cover(list(value))
    return value  # its text is covered when it is made


def text_of(value: Any) -> str:
    """Return any value as covered text, even one that cannot be printed."""
    try:
        return cover_text(str(value))
    except Exception:
        return f"<{type(value).__name__}>"


def exception_text(exc_info: Any) -> str:
    """Return an error's traceback, covered."""
    try:
        text = "".join(traceback.format_exception(*exc_info))
    except Exception as broken:
        return f"<the traceback cannot be shown: {type(broken).__name__}>"
    return cover_text(clean(text, EXCEPTION_LIMIT)).rstrip("\n")


def for_terminal(fields: Fields) -> Fields:
    """Return the fields so that no value of one can move the cursor or begin a line."""
    shown = {
        printable(name): value if type(value) in NUMBERS else printable(text_of(value))
        for name, value in fields.items()
    }
    if "exception" in fields:
        lines = text_of(fields["exception"]).split("\n")
        shown["exception"] = "\n".join(f"  {printable(line)}" for line in lines)
    return shown


def pair(name: str, value: Any) -> str:
    """Return one field as a line of text has it."""
    return f"{printable(name)}={printable(text_of(value))}"


def loop_error(context: Fields) -> logging.LogRecord:
    """Return the record that asyncio makes of an error in a loop, but covered."""
    error = context.get("exception")
    lines = [str(context.get("message") or "Unhandled exception in event loop")]
    others = sorted(context.keys() - {"message", "exception"})
    lines += [f"{name}: {text_of(context[name])}" for name in others]
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    message = cover_text("\n".join(lines))
    record = logging.LogRecord("asyncio", logging.ERROR, __file__, 0, message, (), exc_info)
    record.exc_text = exception_text(exc_info) if exc_info else None
    return record
