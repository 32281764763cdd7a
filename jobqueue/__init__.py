"""A durable background job queue for Django, in the PostgreSQL it already has."""

from typing import TYPE_CHECKING, Any

__all__ = ["JobContext", "enqueue_many", "enqueue_on_commit", "schedule"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from jobqueue.context import JobContext
    from jobqueue.enqueueing.enqueue import enqueue_on_commit
    from jobqueue.enqueueing.many import enqueue_many
    from jobqueue.scheduling.declared import schedule

_HOMES = {
    "JobContext": "jobqueue.context",
    "enqueue_many": "jobqueue.enqueueing.many",
    "enqueue_on_commit": "jobqueue.enqueueing.enqueue",
    "schedule": "jobqueue.scheduling.declared",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: Django imports this package before its app registry is ready.
    if name not in _HOMES:
        raise AttributeError(f"module 'jobqueue' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
