"""Functions that are no tasks, or odd ones: what a stored path or a decorator may meet."""

import functools
import os  # a path such as `tests.unit.odd_tasks.os.system` leads here
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.tasks import task

from jobqueue.backend import JobQueueBackend
from jobqueue.tasks import JobTask

NUMBER = 7


@task
def good(number: int, *, text: str = "") -> int:
    return number


@task(max_attempts=3, timeout=60, backoff=2.5)
def chosen() -> None: ...


def seconds(failures: int) -> float:
    return failures * 10


@task(takes_context=True)
def with_context(context, number: int):
    context.progress(number, 10)
    return context.attempt, type(context).__name__


@task
async def coroutine(number: int) -> int:
    return number + 1


def undecorated() -> None: ...


def generator():
    yield 1


async def async_generator():
    yield 1


class Callable_:
    def __call__(self) -> None: ...

    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...


partial = functools.partial(undecorated)
async_partial = functools.partial(coroutine.func, 1)
instance = Callable_()
nothing = lambda: None  # noqa: E731
wrapped = contextmanager(generator)

__all__ = ["os"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterTask(JobTask):
    """As under a Django whose Task has a field that this version has never heard of."""

    metadata: dict[str, Any] = field(default_factory=dict)


class LaterBackend(JobQueueBackend):
    task_class = LaterTask


@task
def returns(number):
    """What no worker stores, by name; or the name of the argument's type."""
    chosen = {
        "bytes": b"x",
        "keys": {1: 2},
        "nan": float("nan"),
        "big": "x" * 2**21,
        "range": range(3),
    }
    if number == "coroutine":
        return coroutine.func(1)
    return chosen[number] if isinstance(number, str) else type(number).__name__
