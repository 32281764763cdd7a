"""What holds for one attempt, and how it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from django.tasks import Task

from jobqueue import backoff
from jobqueue.conf import Settings
from jobqueue.store.finish import Ending
from jobqueue.tasks import options_of


class How(Enum):
    """Who writes an ending."""

    PUT = "put"  # the finisher, from now on
    RECORDED = "recorded"  # the handler's own transaction has
    REFUSED = "refused"  # nobody: the fence held, only the trace is left


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler has really ended, and this is to be written."""

    how: How
    ending: Ending


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for one attempt: the call's option, else the task's, else the setting's."""

    timeout: float | None
    backoff: backoff.Backoff | str | None
    atomic: bool
    interruptible: bool


def options_for(stored: dict[str, Any], task: Task[..., Any], settings: Settings) -> Options:
    """Return the options of an attempt, `stored` being those of the call."""
    chosen: dict[str, Any] = {**options_of(task), **stored}
    return Options(
        timeout=chosen.get("timeout", settings.timeout_seconds),
        backoff=chosen.get("backoff"),
        atomic=bool(chosen.get("atomic", False)),
        interruptible=bool(chosen.get("interruptible", True)),
    )
