"""Which tasks an operator may put into a schedule: what a form offers, never what it is given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from django.apps import apps
from django.tasks import Task
from django.utils.module_loading import module_has_submodule

from jobqueue.conf import EVERY_TASK, settings
from jobqueue.exceptions import JobQueueError
from jobqueue.logs import get_logger
from jobqueue.scheduling import declared

OWN = "jobqueue"
log = get_logger()


class TaskNotOffered(JobQueueError, ValueError):
    """The project does not let operators schedule this task."""


def offered() -> dict[str, Task[..., Any]]:
    """Return the tasks by their paths, in order: of those in the installed apps' `tasks` modules,
    the ones that `OPERATOR_TASKS` names; without it, those of declared schedules. Never a task of
    the queue itself.
    """
    found = dict(_of_installed_apps())
    wanted = settings().operator_tasks
    if wanted is None:
        paths = {declaration.task for declaration in declared.so_far()}
    else:
        paths = set(found) if EVERY_TASK in wanted else set(wanted)
    return {
        path: found[path] for path in sorted(paths & found.keys()) if path.partition(".")[0] != OWN
    }


def check(path: str) -> None:
    """Raise TaskNotOffered, with what to write in the settings."""
    if path not in offered():
        raise TaskNotOffered(
            f"{path} is not among the tasks that operators may schedule: "
            "the project names them in JOBQUEUE['OPERATOR_TASKS']."
        )


def unknown_names() -> list[str]:
    """Return what `OPERATOR_TASKS` names, but no installed app's `tasks` module has."""
    wanted = settings().operator_tasks or ()
    found = dict(_of_installed_apps()) if wanted else {}
    return [path for path in wanted if path != EVERY_TASK and path not in found]


def _of_installed_apps() -> Iterator[tuple[str, Task[..., Any]]]:
    for module in _task_modules():
        for value in list(vars(module).values()):
            if isinstance(value, Task):
                yield value.module_path, value


def _task_modules() -> Iterator[ModuleType]:
    """The `tasks` modules, and what has been imported below them where one is a package."""
    for app in apps.get_app_configs():
        if app.module is None or not module_has_submodule(app.module, "tasks"):
            continue
        name = f"{app.name}.tasks"
        try:
            yield import_module(name)
        except Exception as error:  # of one app: the others' tasks can be chosen
            log.warning("task_module_unreadable", module=name, error=repr(error))
            continue
        below = [each for each in sys.modules if each.startswith(f"{name}.")]
        yield from (sys.modules[each] for each in below)
