"""System checks: report the faults that stop a worker before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, NotSupportedError, connections

from jobqueue import conf, routers, server_rules
from jobqueue.server_rules import ServerFault

COMMAND = "runworker"


class CheckedBackend(Protocol):
    """What is checked in one entry of TASKS."""

    alias: str
    given_queues: Any
    queues: set[str]
    options: dict[str, Any]


def register_all() -> None:
    """Register every check of this app; called once by its AppConfig."""
    register(check_settings)
    register(check_command)
    register(check_pages)
    register(check_routers)
    register(check_server, Tags.database)


def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Report every fault in `JOBQUEUE` at once."""
    return [
        (Error if fault.code.startswith("E") else Warning)(
            f"{fault.key}: {fault.message}", hint=fault.hint, id=f"jobqueue.{fault.code}"
        )
        for fault in conf.read()[1]
    ]


def check_command(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Another app may ship a command of the same name; the later one in INSTALLED_APPS loses."""
    from django.core.management import get_commands

    owner = get_commands().get(COMMAND, "jobqueue")
    if owner == "jobqueue":
        return []
    hint = f"Use `manage.py jobqueue worker`, or put 'jobqueue' before {owner!r} in INSTALLED_APPS."
    message = f"`manage.py {COMMAND}` is the command of {owner!r}, not of jobqueue."
    return [Warning(message, hint=hint, id="jobqueue.W010")]


def check_pages(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Without htmx the admin's pages work but do not refresh."""
    if not apps.is_installed("django.contrib.admin") or apps.is_installed("django_htmx"):
        return []
    hint = 'Add "django_htmx" to INSTALLED_APPS.'
    message = "Without django_htmx the pages of the job queue do not refresh themselves."
    return [Warning(message, hint=hint, id="jobqueue.W013")]


def check_routers(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """A router of the project may decide for every model, and so for this app's."""
    current, faults = conf.read()
    if any(fault.code.startswith("E") for fault in faults) or routers.is_heard():
        return []
    hint = "Put 'jobqueue.routers.JobQueueRouter' first in DATABASE_ROUTERS."
    message = (
        "A router of DATABASE_ROUTERS leads the models of jobqueue away from "
        f"JOBQUEUE['DATABASE'], {current.database!r}."
    )
    return [Warning(message, hint=hint, id="jobqueue.W014")]


def check_server(
    app_configs: Sequence[AppConfig] | None = None,
    databases: Sequence[str] | None = None,
    **_: Any,
) -> list[CheckMessage]:
    """Check the queue's database server; run by `migrate` and `check --database`."""
    current, faults = conf.read()
    if current.database not in (databases or ()) or any(f.code.startswith("E") for f in faults):
        return []
    fault = server_fault(current.database)
    if fault is None:
        return []
    return [Error(fault.message, hint=fault.remedy, id=f"jobqueue.{fault.code}")]


def server_fault(alias: str) -> ServerFault | None:
    """Return why this server cannot hold the queue, if so; one that is away has no fault."""
    wrapper: Any = connections[alias]
    try:
        wrapper.ensure_connection()
    except NotSupportedError as error:
        wrapper.close()
        return server_rules.too_old(str(error))
    except DatabaseError:
        return None
    info = wrapper.connection.info
    (oldest, *_) = wrapper.features.minimum_database_version or (0,)
    return server_rules.fault_of(
        info.server_version, info.parameter_status("server_encoding"), oldest
    )


def check_backend(backend: CheckedBackend) -> list[CheckMessage]:
    """Check the queues of one entry of TASKS."""
    found: list[CheckMessage] = []
    if not apps.is_installed("jobqueue"):
        hint = 'Add "jobqueue" to INSTALLED_APPS.'
        message = f"TASKS['{backend.alias}'] uses jobqueue, which is not an installed app."
        return [Error(message, hint=hint, id="jobqueue.E020")]
    if not isinstance(backend.given_queues, list | tuple | set | frozenset):
        message = f"TASKS['{backend.alias}']['QUEUES'] is {backend.given_queues!r}, not a list."
        hint = 'Write the queues\' names in a list, such as ["default"].'
        return [Error(message, hint=hint, id="jobqueue.E022")]
    if not backend.queues:
        hint = "A worker serves 'default' unless --queues names others, or '*' for every queue."
        message = f"TASKS['{backend.alias}']['QUEUES'] is empty, so any queue name is accepted."
        found.append(Warning(message, hint=hint, id="jobqueue.W011"))
    for name in sorted(backend.queues, key=str):
        if not isinstance(name, str) or not conf.QUEUE_NAME.match(name):
            message = f"TASKS['{backend.alias}']['QUEUES'] holds {name!r}, not a queue name."
            hint = f"Write {conf.QUEUE_NAME_RULE}."
            found.append(Error(message, hint=hint, id="jobqueue.E021"))
    if backend.options:
        message = f"TASKS['{backend.alias}']['OPTIONS'] is not read by jobqueue."
        hint = "Write the settings of the queue in JOBQUEUE."
        found.append(Warning(message, hint=hint, id="jobqueue.W012"))
    return found
