"""Backends for test settings that know this queue's options."""

from __future__ import annotations

from typing import Any

from django.tasks import Task
from django.tasks.backends.dummy import DummyBackend as DjangoDummyBackend
from django.tasks.backends.immediate import ImmediateBackend as DjangoImmediateBackend

from jobqueue.options import validate
from jobqueue.tasks import JobTask


class _KnowsOptions:
    task_class: type[Task[..., Any]] = JobTask

    def validate_task(self, task: Task[..., Any]) -> None:
        validate(task)
        super().validate_task(task)  # type: ignore[misc]


class ImmediateBackend(_KnowsOptions, DjangoImmediateBackend):
    """Runs each job at the enqueue, in the same thread."""


class DummyBackend(_KnowsOptions, DjangoDummyBackend):
    """Keeps what was enqueued in `results` and runs nothing."""


__all__ = ["DummyBackend", "ImmediateBackend"]
