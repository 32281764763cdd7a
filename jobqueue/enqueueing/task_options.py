"""What a task and its options may be, checked at @task and at using()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.tasks import Task
from django.tasks.exceptions import InvalidTask
from django.utils.inspect import is_module_level_function

from jobqueue.conf import QUEUE_NAME, QUEUE_NAME_RULE
from jobqueue.exceptions import MAX_DELAY_SECONDS
from jobqueue.tasks import NOT_BUILT, UNSET, JobTask, options_of


def validate(task: Task[..., Any]) -> None:
    """Check what Django's own validation leaves open. Raises InvalidTask with what to write."""
    _validate_function(task.func)
    if isinstance(task.priority, bool) or not isinstance(task.priority, int):
        raise InvalidTask(
            f"priority must be a whole number between -100 and 100, not {task.priority!r}."
        )
    if not isinstance(task.queue_name, str) or not QUEUE_NAME.match(task.queue_name):
        raise InvalidTask(f"queue_name {task.queue_name!r} is not valid: write {QUEUE_NAME_RULE}.")
    if task.run_after is not None:
        _validate_run_after(task.run_after)
    if isinstance(task, JobTask):
        _validate_options(task)


def _validate_function(func: Callable[..., Any]) -> None:
    if not _has_path(func):
        raise InvalidTask(
            f"{func!r} is not a function defined at the top level of a module: "
            "a worker could not find it again."
        )
    if func.__module__ == "__main__":
        raise InvalidTask(
            f"{func.__qualname__} stands in __main__, which a worker cannot import: "
            "move it to a module of an app."
        )
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise InvalidTask(
            f"{func.__qualname__} is a generator: calling it would run nothing. "
            "Use a plain function or a coroutine."
        )


def _has_path(func: Callable[..., Any]) -> bool:
    """Whether module and name lead back to it: no lambda, no method, no inner function."""
    return is_module_level_function(func) and func.__qualname__.isidentifier()


def _validate_run_after(moment: Any) -> None:
    if not isinstance(moment, datetime):
        raise InvalidTask(f"run_after must be a datetime, not {type(moment).__name__}.")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidTask("run_after must be an aware datetime.")
    try:
        year = moment.astimezone(UTC).year
    except OverflowError:
        year = moment.year
    if year >= 9999:
        raise InvalidTask(f"run_after {moment} is too far: write a moment before the year 9999.")


# Sums with an earlier moment could overflow in its own zone.
_YEAR_TWO = datetime(2, 1, 1, tzinfo=UTC)


def _validate_options(task: JobTask) -> None:
    for name in NOT_BUILT:
        if getattr(task, name) is not UNSET:
            raise InvalidTask(
                f"The option {name!r} is not supported by this version of jobqueue: leave it out."
            )
    options = options_of(task)
    for name, (good, wish) in _OPTION_RULES.items():
        if name in options and not good(options[name]):
            raise InvalidTask(f"{name} must be {wish}, not {options[name]!r}.")
    if task.run_after is not None and (expires := options.get("expires")):
        _validate_run_after(max(task.run_after, _YEAR_TWO) + timedelta(seconds=expires))
    if options.get("atomic") and inspect.iscoroutinefunction(task.func):
        raise InvalidTask(
            "atomic needs a plain function: Django's transactions do not span awaits."
        )


def _is_seconds(value: Any, *, low: float = 0) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and low < value <= MAX_DELAY_SECONDS
    )


def _is_backoff(value: Any) -> bool:
    if callable(value):
        return _has_path(value)
    return value == 0 or _is_seconds(value)


_OPTION_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_attempts": (
        lambda v: isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= 100_000,
        "a whole number from 1 to 100000",
    ),
    "timeout": (lambda v: v is None or _is_seconds(v), "seconds above zero, or None for no limit"),
    "backoff": (_is_backoff, "seconds, or a module-level function of the failure count"),
    "atomic": (lambda v: isinstance(v, bool), "True or False"),
    "interruptible": (lambda v: isinstance(v, bool), "True or False"),
    "expires": (lambda v: v is None or _is_seconds(v), "seconds above zero, or None"),
}
