"""Which queues there are: one rule for every door that takes a name."""

from __future__ import annotations

from django.tasks import task_backends

from jobqueue.backend import JobQueueBackend
from jobqueue.conf import QUEUE_NAME, QUEUE_NAME_RULE, settings
from jobqueue.models import Job, Queue
from jobqueue.states import State


def own_backends() -> list[JobQueueBackend]:
    """Return the entries of TASKS that are this app's. Raises InvalidTaskBackend."""
    backends = [task_backends[alias] for alias in task_backends.settings]
    return [backend for backend in backends if isinstance(backend, JobQueueBackend)]


def listed() -> list[str]:
    """Return the names in QUEUES."""
    return sorted({name for backend in own_backends() for name in backend.queues})


def configured() -> list[str]:
    """Return what a worker serves by default: QUEUES; `default` for an entry that lists none."""
    names: dict[str, None] = {}
    for backend in own_backends():
        names.update(dict.fromkeys(sorted(backend.queues) or ["default"]))
    return list(names)


def fault(name: object) -> str:
    """Return why no job can be in a queue of this name, and what to write; empty if one can.

    Asked of what a worker serves, of where jobs are moved, and of a schedule's queue: the same that
    an enqueue accepts.
    """
    if not isinstance(name, str) or not QUEUE_NAME.match(name):
        return f"{name!r} is not a queue name: write {QUEUE_NAME_RULE}."
    if not all(backend.queues for backend in own_backends()):
        return ""  # an enqueue accepts any name
    known = configured()
    if name in known:
        return ""
    return (
        f"{name!r} is in no QUEUES of TASKS, so no job can be in it: "
        f"write some of {', '.join(known)}."
    )


def unknown(name: object) -> str:
    """Return why there is no queue of this name; empty if there is one.

    Asked of what is paused, resumed or filtered by. A queue that has left the settings is still
    known while it has a row, or jobs that run or could.
    """
    reason = fault(name)
    if not reason or not isinstance(name, str) or not QUEUE_NAME.match(name):
        return reason
    alias = settings().database
    if Queue.objects.using(alias).filter(name=name).exists():
        return ""
    jobs = Job.objects.using(alias).filter(queue=name)
    # Both by an index. Others that wait there cannot run before they are READY.
    claimable = jobs.filter(state=State.READY, suspect=False, needs__lte=0)
    return "" if (claimable | jobs.filter(state=State.RUNNING)).exists() else reason
