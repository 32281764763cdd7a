"""Handlers of every kind. What they share with the tests stands in `shared`, in one process."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.tasks import task

from jobqueue.exceptions import PermanentError, RetryLater, Snooze


class Shared(SimpleNamespace):
    """What handlers and tests share; emptied before every test."""

    def clear(self) -> None:
        self.notes: list[Any] = []
        self.events: dict[str, threading.Event] = defaultdict(threading.Event)
        self.extra: dict[str, Any] = {}


shared = Shared()
shared.clear()


def note(value: Any) -> None:
    shared.notes.append(value)


def query(statement: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone() if cursor.description else None


aquery = sync_to_async(query)


def quickly(failures: int) -> float:
    """A rule of the project."""
    return 0.01


@task
def call(name: str, *args: Any) -> Any:
    """Run a function that the test has put there."""
    return shared.extra[name](*args)


@task
async def acall(name: str, *args: Any) -> Any:
    return await shared.extra[name](*args)


@task(takes_context=True)
def call_with(context: Any, name: str, *args: Any) -> Any:
    return shared.extra[name](context, *args)


@task(takes_context=True)
async def acall_with(context: Any, name: str, *args: Any) -> Any:
    return await shared.extra[name](context, *args)


@task(atomic=True)
def atomically(name: str, *args: Any) -> Any:
    return shared.extra[name](*args)


@task(interruptible=False)
def stubborn(name: str, *args: Any) -> Any:
    return shared.extra[name](*args)


@task(max_attempts=1)
def once(name: str, *args: Any) -> Any:
    return shared.extra[name](*args)


@task(max_attempts=1)
async def aonce(name: str, *args: Any) -> Any:
    return await shared.extra[name](*args)


@task
def add(left: int, right: int) -> int:
    return left + right


@task
async def aadd(left: int, right: int) -> int:
    return left + right


__all__ = ["PermanentError", "RetryLater", "Snooze", "asyncio"]
