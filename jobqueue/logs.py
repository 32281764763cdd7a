"""Events: through the standard library's logger `jobqueue`, with their fields as `extra`.

structlog makes them, by processors of our own: how the project has configured structlog is neither
read nor changed. In a worker a thread delivers them, so that no handler or filter of the project
runs on the loop: see `delivering`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import structlog

from jobqueue import log_texts
from jobqueue.log_delivery import Delivery
from jobqueue.log_output import Output, together

# Frames between an event and `_deliver`: the logger's method, its `_say`, structlog's processing.
CALLER = 4
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
# What a LogRecord owns: a field of such a name gets the suffix `_`.
OWNED = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
Fields = dict[str, Any]
stdlib = logging.getLogger("jobqueue")


class EventLogger(structlog.BoundLoggerBase):
    """An event has a name and fields. An event whose level is off costs next to nothing, and
    nothing that goes wrong here reaches the caller."""

    def debug(self, event: str, **fields: Any) -> None:
        self._say("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._say("error", event, fields)

    def critical(self, event: str, **fields: Any) -> None:
        self._say("critical", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._say("error", event, {"exc_info": True, **fields})

    def is_enabled_for(self, level: int) -> bool:
        return bool(stdlib.isEnabledFor(level))

    def _say(self, level: str, event: str, fields: Fields) -> None:
        if stdlib.isEnabledFor(LEVELS[level]):
            with contextlib.suppress(Exception):
                self._process_event(level, event, fields)


def _deliver(logger: Any, level: str, fields: Any) -> str:
    """The last processor: pass the event to our own output, to other handlers, or both."""
    if "exc_info" in fields:
        fields["exc_info"] = _exc_info(fields["exc_info"])
    if _output is not None:
        _output.write(level, fields)
    if _output is None or _others_listen():
        made = Made(level, fields, sys._getframe(CALLER))
        if _delivery is None:
            made.handle()
        else:
            _delivery.put(made.handle)
    return ""


def _cover(logger: Any, level: str, fields: Any) -> Any:
    return log_texts.covered(fields)


# Emptied and filled again by tests that look at the events themselves.
PROCESSORS: list[Any] = [structlog.contextvars.merge_contextvars, _cover, _deliver]


def get_logger() -> EventLogger:
    """Return the logger for this app's modules."""
    logger: EventLogger = structlog.wrap_logger(
        stdlib,
        processors=PROCESSORS,
        wrapper_class=EventLogger,
        context_class=dict,
        cache_logger_on_first_use=True,
    ).bind()
    return logger


class Made:
    """One event as it was when it was made. Its LogRecord, whose making may run the project's code,
    is made when it is delivered."""

    __slots__ = ("exc_info", "fields", "level", "line", "name", "path", "thread", "time", "where")

    def __init__(self, level: str, fields: Fields, frame: FrameType) -> None:
        self.level, self.fields = LEVELS[level], fields
        self.name, self.exc_info = fields.pop("event"), fields.pop("exc_info", None)
        code = frame.f_code
        self.path, self.line, self.where = code.co_filename, frame.f_lineno, code.co_name
        self.time, self.thread = time.time(), threading.current_thread()

    def handle(self) -> None:
        """Pass the record to the handlers."""
        record = stdlib.makeRecord(
            stdlib.name,
            self.level,
            self.path,
            self.line,
            self.name,
            (),
            self.exc_info,
            self.where,
        )
        late = record.created - self.time
        record.created, record.msecs = self.time, float(int(self.time % 1 * 1000))
        record.relativeCreated -= late * 1000
        record.thread, record.threadName = self.thread.ident, self.thread.name
        for name, value in self.fields.items():
            setattr(record, f"{name}_" if name in OWNED else name, value)
        record.event_fields = self.fields
        if self.exc_info:  # else a formatter makes it, uncovered
            record.exc_text = log_texts.exception_text(self.exc_info)
        stdlib.handle(record)


log = get_logger()


def _exc_info(given: Any) -> Any:
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    found = given if isinstance(given, tuple) else sys.exc_info() if given else None
    return found if found and found[0] is not None else None


class Formatter(logging.Formatter):
    """For a project's LOGGING: the project's own format, followed by the event's fields."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        fields = getattr(record, "event_fields", {})
        shown = [log_texts.pair(name, value) for name, value in fields.items()]
        return " ".join([super().formatMessage(record), *shown])


# Our own output, if the project has set up none.

_output: Output | None = None


def set_up(style: str | None = None, *, debug: bool = False) -> None:
    """Called in `runworker`'s process after `django.setup()`. If neither the logger `jobqueue` nor
    the root has a handler, events go to stderr, as JSON or text."""
    global _output
    if _are_handled():
        if style is not None:
            log.warning("log_format_unused", format=style)
    else:
        _output = Output(style)
        if stdlib.level == logging.NOTSET:
            stdlib.setLevel(logging.INFO)
    if debug:
        stdlib.setLevel(logging.DEBUG)


def _are_handled() -> bool:
    """Whether any handler would get an event."""
    return bool(stdlib.handlers or (stdlib.propagate and stdlib.root.handlers))


def _others_listen() -> bool:
    """Whether anything else listens: handlers added later, or a library that hooks in between a
    logger and its handlers, as Sentry's does."""
    return _are_handled() or type(stdlib).callHandlers.__code__.co_filename != _LOGGING_FILE


_LOGGING_FILE = logging.Handler.handle.__code__.co_filename


# The thread that delivers.


_delivery: Delivery | None = None  # a stuck one stays, so that nobody else meets its handler
_users: list[Delivery] = []
_lock = threading.Lock()


@contextlib.contextmanager
def delivering(seconds: Callable[[], float]) -> Iterator[Delivery]:
    """Deliver events in a thread while the block runs, and the rest at its end, for at most this
    many seconds: a handler that hangs keeps nobody waiting."""
    global _delivery
    with _lock:
        if _delivery is None or _delivery.is_closing:
            _delivery = Delivery(on_dropped=_log_dropped, on_end=_forget)
        delivery = _delivery
        _users.append(delivery)
    try:
        yield delivery
    finally:
        with _lock:
            _users.remove(delivery)
            delivery.is_closing = delivery not in _users
        if delivery.is_closing and delivery.close(seconds()):
            _forget(delivery)


def _log_dropped(number: int) -> None:
    log.warning("log_records_dropped", number=number)


def _forget(delivery: Delivery) -> None:
    """Nothing keeps it from here on: events are delivered where they are made, or by another."""
    global _delivery
    with _lock:
        if _delivery is delivery:
            _delivery = None


def apart(call: Callable[..., object], *args: Any) -> None:
    """Make a call that ends in the project's handlers: in the delivering thread, if any."""
    if _delivery is None:
        call(*args)
    else:
        _delivery.put(lambda: call(*args))


def handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own log lines go to the project's handlers, which may not run on the loop."""
    apart(lambda: logging.getLogger("asyncio").handle(log_texts.loop_error(context)))


def flush(seconds: float) -> bool:
    """Before a hard exit: deliver what is waiting, for this many seconds at most."""
    return _delivery is None or _delivery.flush(seconds)


def _after_fork() -> None:
    """The child has not inherited the thread."""
    global _delivery
    _delivery = None


os.register_at_fork(after_in_child=_after_fork)

__all__ = ["EventLogger", "Formatter", "delivering", "flush", "get_logger", "set_up", "together"]
