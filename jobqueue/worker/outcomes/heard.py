"""Who listens to Django's task signals, and to the lines that its own receivers log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from django.conf import settings
from django.dispatch import Signal
from django.tasks.signals import task_finished
from django.utils.log import AdminEmailHandler, RequireDebugFalse, RequireDebugTrue

PLAIN_FILTERS = (logging.Filter, RequireDebugFalse, RequireDebugTrue)
KNOWN_MODULES = ("logging", "django", "jobqueue")
django_log = logging.getLogger("django.tasks")


def has_own(signal: Signal) -> bool:
    """Whether the project has connected a receiver."""
    return len(signal.receivers) > 1  # Django connects exactly one receiver


def is_heard(level: int) -> bool:
    """Whether any handler would take a line from Django's own receivers. With Django's default
    logging and DEBUG off, none would."""
    if not django_log.isEnabledFor(level):
        return False
    line = django_log.makeRecord(django_log.name, level, __file__, 0, "Task", (), None)
    return any(
        level >= handler.level and (not _is_plain(handler) or handler.filter(line))
        for handler in _log_handlers()
        if settings.ADMINS or type(handler) is not AdminEmailHandler
    )


def are_failures_heard() -> bool:
    """Whether anybody hears that a job has failed for good. Sentry is no handler: it takes every
    line by a patch of `logging`."""
    return (
        has_own(task_finished)
        or is_heard(logging.ERROR)
        or (is_logging_patched() and django_log.isEnabledFor(logging.ERROR))
    )


def logs_quickly(level: int) -> bool:
    """Whether a line of this level goes only to streams and files, through none of the project's
    code, which must not run on the loop."""
    return (
        not django_log.filters
        and not (is_logging_patched() and level >= logging.ERROR)
        and all(
            level < handler.level
            or (
                isinstance(handler, logging.StreamHandler | logging.NullHandler)
                and _is_plain(handler)
                and all(map(_is_known, (handler, handler.formatter)))
            )
            for handler in _log_handlers()
        )
    )


def is_logging_patched() -> bool:
    """Whether somebody has put code of their own in the way of every line."""
    return any(
        getattr(function, "__module__", None) != "logging"
        for function in (logging.Logger.handle, logging.Logger.callHandlers)
    )


def _log_handlers() -> Iterator[logging.Handler]:
    logger: logging.Logger | None = django_log
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _is_plain(handler: logging.Handler) -> bool:
    """Whether this handler filters without any of the project's code."""
    return all(type(each) in PLAIN_FILTERS for each in handler.filters)


def _is_known(thing: object) -> bool:
    return thing is None or type(thing).__module__.partition(".")[0] in KNOWN_MODULES
