"""A new job's row: every check of an enqueue, without sending anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.tasks import Task

from jobqueue.conf import Settings
from jobqueue.context import current_job
from jobqueue.enqueueing import tracing
from jobqueue.exceptions import ArgumentsError, EnqueueError
from jobqueue.payload import NotJSON, encode, size_of
from jobqueue.tasks import (
    UNSET,
    UnknownTask,
    check_arguments,
    further_fields,
    options_of,
    resolve,
    signature_text,
)

# A stored moment earlier than this means "now"; it also keeps run_at a date that every zone knows.
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def draft(
    task: Task[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    current: Settings,
    backend: str | None = None,
) -> dict[str, Any]:
    """Return the parameters of the INSERT.

    Raises ArgumentsError, EnqueueError, or TypeError when the task cannot be called with these.
    """
    args_text, kwargs_text = encode_arguments(task, args, kwargs, current)
    options = options_of(task)
    return {
        "task": task.module_path,
        "args": args_text,
        "kwargs": kwargs_text,
        "args_bytes": size_of(args_text) + size_of(kwargs_text),
        "signature": signature_text(task.func, task.takes_context),
        "queue": task.queue_name,
        "backend": backend or task.backend,
        "priority": task.priority,
        "options": _call_options(task, options, current),
        "run_after": _moment(task.run_after),
        "expires": options.get("expires"),
        "max_attempts": options.get("max_attempts", current.max_attempts),
        "parent": current_job.get(),
        "traceparent": tracing.current(),
    }


def encode_arguments(
    task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any], current: Settings
) -> tuple[str, str]:
    """Return both as JSON text. Raises ArgumentsError, or TypeError as the call would."""
    args = list(args)
    check_arguments(task, args, kwargs)
    limit = current.args_max_bytes
    try:
        args_text = encode(args, "args", limit, "ARGS_MAX_BYTES")
        kwargs_text = encode(kwargs, "kwargs", limit, "ARGS_MAX_BYTES") if kwargs else "{}"
    except NotJSON as error:
        raise ArgumentsError(f"{task.module_path}: {error}") from None
    return args_text, kwargs_text


def _call_options(task: Task[..., Any], options: dict[str, Any], current: Settings) -> str:
    """The options this call overrides. Declared options stay in the code, where a deploy may
    change them for waiting jobs too."""
    try:
        declared = resolve(task.module_path)
    except UnknownTask as error:
        raise EnqueueError(f"a worker could not run this: {error}") from error
    if declared is task:
        return "{}"
    usual = options_of(declared)
    changed = {
        name: dotted(value) for name, value in options.items() if value != usual.get(name, UNSET)
    }
    if changed.get("max_attempts") not in (None, current.max_attempts):
        del changed["max_attempts"]  # it is in its column, unless it is the setting's value
    for name in further_fields(task):
        if (value := getattr(task, name)) != getattr(declared, name, UNSET):
            changed[name] = _as_json(task, name, value, current)
    if task.run_after is not None:  # the row's own moment changes with each retry
        changed["run_after"] = task.run_after.isoformat()
    return json.dumps(changed)


def _as_json(task: Task[..., Any], name: str, value: Any, current: Settings) -> Any:
    try:
        return json.loads(encode(value, name, current.args_max_bytes, "ARGS_MAX_BYTES"))
    except NotJSON as error:
        raise ArgumentsError(f"{task.module_path}: {error}") from None


def dotted(value: Any) -> Any:
    """Return a function's path, so that it can be stored; anything else as it is."""
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else value


def _moment(run_after: datetime | None) -> datetime | None:
    # Compared first: converting a moment of the year 1 to UTC can overflow.
    return None if run_after is None else max(run_after, _LONG_AGO).astimezone(UTC)
