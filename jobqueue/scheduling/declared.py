"""Schedules declared in code, and their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.tasks import Task
from django.tasks.exceptions import InvalidTask
from django.utils.module_loading import autodiscover_modules

from jobqueue.clock import database_time
from jobqueue.conf import settings
from jobqueue.exceptions import JobQueueError
from jobqueue.logs import get_logger
from jobqueue.payload import encode
from jobqueue.scheduling import cron as expressions
from jobqueue.states import AUTOMATIC
from jobqueue.tasks import check_arguments, signature_text

NAME_LENGTH = 200
CATCH_UP = ("skip", "once", "all")
log = get_logger()


class ScheduleError(JobQueueError, ValueError):
    """The schedule cannot be declared like this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One schedule as the code declares it; the fields are those of the row."""

    name: str
    task: str
    cron: str
    timezone: str = "UTC"
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    signature: str = ""
    queue: str
    priority: int = 0
    catch_up: str = "once"


@dataclass(frozen=True, slots=True)
class Synchronised:
    """What synchronising did, by the schedules' names."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    enabled_again: list[str] = field(default_factory=list)
    undeclared: list[str] = field(default_factory=list)  # of code, but no longer declared
    foreign: list[str] = field(default_factory=list)  # an operator has made one with that name


_declared: dict[str, Declaration] = {}


def schedule(
    *,
    name: str,
    task: Task[..., Any],
    cron: str,
    timezone: str = "UTC",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    catch_up: str = "once",
) -> None:
    """Declare a recurring job, next to its task; workers bring the row in line when they start.

    catch_up: what happens to ticks missed without a leader: "skip", "once" (one job for all
    of them) or "all" (one each, of the last day). Raises ScheduleError, at import, with what to
    write instead.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_LENGTH or "\0" in name:
        raise ScheduleError(f"name must be a text of 1 to {NAME_LENGTH} characters, not {name!r}.")
    if not isinstance(task, Task):
        raise ScheduleError(f"{name}: task must be a task, decorated with @task, not {task!r}.")
    if catch_up not in CATCH_UP:
        raise ScheduleError(
            f"{name}: catch_up must be one of {', '.join(CATCH_UP)}, not {catch_up!r}."
        )
    kwargs = dict(kwargs or {})
    try:
        expressions.check(cron, timezone)
        changed = task.using(queue_name=queue, priority=priority)
        check_arguments(changed, list(args), kwargs)
        limit = settings().args_max_bytes
        encode(list(args), "args", limit, "ARGS_MAX_BYTES")
        encode(kwargs, "kwargs", limit, "ARGS_MAX_BYTES")
    except (InvalidTask, TypeError, ValueError) as error:
        raise ScheduleError(f"{name}: {error}") from error
    _declare(
        Declaration(
            name=name,
            task=task.module_path,
            cron=cron,
            timezone=timezone,
            args=list(args),
            kwargs=kwargs,
            signature=signature_text(task.func, task.takes_context),
            queue=changed.queue_name,
            priority=changed.priority,
            catch_up=catch_up,
        )
    )


def _declare(declaration: Declaration) -> None:
    earlier = _declared.get(declaration.name)
    if earlier is not None and earlier != declaration:
        raise ScheduleError(
            f"Two schedules are declared under the name {declaration.name!r}: "
            f"{earlier.task} and {declaration.task}. Give one of them another name."
        )
    _declared[declaration.name] = declaration


def declared() -> list[Declaration]:
    """Return every schedule declared in the `tasks` modules of the installed apps."""
    autodiscover_modules("tasks")
    return so_far()


def so_far() -> list[Declaration]:
    """Return those of the modules that have been imported."""
    return list(_declared.values())


def synchronise() -> Synchronised:
    """Bring the rows in line with the code: called by every worker when it starts.

    Never changes an operator's switch, nor a schedule that an operator made. One disabled by the
    leader is enabled again, since the new code may have what was missing.
    """
    done, wanted = Synchronised(), declared()
    for declaration in wanted:
        _synchronise_one(declaration, done)
    names = [declaration.name for declaration in wanted]
    model, alias = _model(), settings().database
    left = model.objects.using(alias).filter(origin=model.Origin.CODE, enabled=True)
    done.undeclared.extend(left.exclude(name__in=names).values_list("name", flat=True))
    _report(done)
    return done


def _synchronise_one(declaration: Declaration, done: Synchronised) -> None:
    model, alias = _model(), settings().database
    values = {field.name: getattr(declaration, field.name) for field in fields(Declaration)}
    with transaction.atomic(using=alias):
        rows = model.objects.using(alias)
        row = rows.select_for_update().filter(name=declaration.name).first()
        if row is None:
            new = model(**values, origin=model.Origin.CODE, next_run_at=_next(declaration, alias))
            # Workers start together; the second one changes nothing.
            rows.bulk_create([new], ignore_conflicts=True)
            done.created.append(declaration.name)
            return
        if row.origin != model.Origin.CODE:
            done.foreign.append(declaration.name)
            return
        changes = {key: value for key, value in values.items() if getattr(row, key) != value}
        if changes.keys() & {"cron", "timezone"}:
            # The change itself never fires it: only the next matching time does.
            changes["next_run_at"] = _next(declaration, alias)
        if changes:
            done.changed.append(declaration.name)
        if not row.enabled and row.disabled_reason.startswith(AUTOMATIC):
            changes |= {"enabled": True, "disabled_reason": "", "strikes": 0, "last_error": ""}
            changes["next_run_at"] = _next(declaration, alias)
            done.enabled_again.append(declaration.name)
        if changes:
            rows.filter(pk=row.pk).update(**changes)


def switch(rows: Any, *, enabled: bool) -> int:
    """Turn schedules (a queryset) on or off; return how many changed.

    When turned on, a schedule starts with a clean record and its next matching time.
    """
    changes: dict[str, Any] = {"enabled": enabled, "disabled_reason": "", "next_run_at": None}
    if enabled:
        changes |= {"strikes": 0, "last_error": ""}
    return int(rows.filter(enabled=not enabled).update(**changes))


def _model() -> Any:
    # Declarations are imported by apps, before the models are ready.
    from jobqueue.models import Schedule

    return Schedule


def _next(declaration: Declaration, alias: str) -> datetime:
    """Return the next tick by the database's clock."""
    now = database_time(alias).astimezone(UTC)
    return expressions.next_tick(declaration.cron, declaration.timezone, now)


def _report(done: Synchronised) -> None:
    for name in done.created:
        log.info("schedule_created", schedule=name)
    for name in done.changed:
        log.info("schedule_changed", schedule=name)
    for name in done.enabled_again:
        log.info("schedule_enabled", schedule=name)
    for name in done.undeclared:
        log.warning("schedule_undeclared", schedule=name)
    for name in done.foreign:
        log.warning("schedule_foreign", schedule=name)
