"""The options of one attempt, and how it ended."""

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
    """Who writes an outcome."""

    PUT = "put"  # the completer
    RECORDED = "recorded"  # the handler's own transaction wrote it
    REFUSED = "refused"  # nobody: the token was refused; only the history is written


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler has really ended, and this is its outcome."""

    how: How
    ending: Ending


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one attempt: each is the call's, else the task's, else the setting's."""

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
