"""The operator's verbs for schedules."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction

from jobqueue.conf import settings
from jobqueue.models import JobEvent, Schedule
from jobqueue.operations.jobs import actor
from jobqueue.scheduling import declared
from jobqueue.stored_json import Unreadable
from jobqueue.tasks import resolve


def enable(schedule: Schedule, *, by: object = None, reason: str = "") -> bool:
    """Let it fire again from its next matching time; return whether it had been off."""
    return _switch(schedule, True, "enable", by, reason)


def disable(schedule: Schedule, *, by: object = None, reason: str = "") -> bool:
    """Stop it from firing; return whether it had been on."""
    return _switch(schedule, False, "disable", by, reason)


def save(schedule: Schedule, changed: Collection[str], *, by: object = None) -> None:
    """Store a schedule that an operator made, or the named fields of an existing one; what the
    leader has written in the meantime stays."""
    is_new = schedule.pk is None
    written = None if is_new else sorted({*changed, "signature"})
    with transaction.atomic(using=settings().database):
        schedule.save(using=settings().database, update_fields=written)
        kind, what = ("create", "") if is_new else ("change", ", ".join(sorted(changed)))
        _note(schedule, kind, by, what)


def delete(schedule: Schedule, *, by: object = None, reason: str = "") -> bool:
    """Delete it with its ticks; its jobs stay. Return whether it existed."""
    alias = settings().database
    with transaction.atomic(using=alias):
        deleted, _ = Schedule.objects.using(alias).filter(pk=schedule.pk).delete()
        if deleted:
            _note(schedule, "delete", by, reason)
    return deleted > 0


def run(schedule: Schedule, *, by: object = None, reason: str = "") -> int:
    """Enqueue its job now, in addition to its ticks, and return the job's id.

    Raises UnknownTask, or what an enqueue raises.
    """
    alias = settings().database
    for name in ("args", "kwargs"):
        if isinstance(stored := getattr(schedule, name), Unreadable):
            raise TypeError(f"{name} {stored}")
    task = resolve(schedule.task).using(
        queue_name=schedule.queue or None, priority=schedule.priority
    )
    with transaction.atomic(using=alias):
        result = task.enqueue(*schedule.args, **schedule.kwargs)
        _note(schedule, "run schedule", by, reason, job=int(result.id))
    return int(result.id)


def _switch(schedule: Schedule, enabled: bool, kind: str, by: object, reason: str) -> bool:
    alias = settings().database
    with transaction.atomic(using=alias):
        rows = Schedule.objects.using(alias).filter(pk=schedule.pk)
        changed = bool(declared.switch(rows, enabled=enabled))
        if changed:
            _note(schedule, kind, by, reason)
    return changed


def _note(schedule: Schedule, kind: str, by: object, reason: str, job: int | None = None) -> None:
    note = f"schedule {schedule.name}" + (f": {reason}" if reason else "")
    JobEvent.objects.using(settings().database).create(
        job=job, kind=kind, actor=actor(by), note=note
    )
