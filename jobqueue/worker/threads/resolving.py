"""Where tasks are imported: in a thread, since a module may ask the database, or take long."""

from __future__ import annotations

from typing import Any

from django.tasks import Task

from jobqueue import tasks
from jobqueue.worker.threads.handler_thread import HandlerThread


def resolve(path: str) -> Task[..., Any]:
    """If a module raises anything while it is imported, its task is unknown here."""
    try:
        return tasks.resolve(path)
    except tasks.UnknownTask:
        raise
    except BaseException as error:
        raise tasks.UnknownTask(f"importing {path} failed: {error!r}") from None


def resolve_in_thread(handler_thread: HandlerThread, path: str) -> Task[..., Any]:
    """In a handler's thread, with healthy connections."""
    handler_thread.prepare()
    try:
        return resolve(path)
    finally:
        handler_thread.tidy()
