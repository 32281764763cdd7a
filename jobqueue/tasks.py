"""Django's Task with this queue's options, and the way from a stored path back to the function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.tasks import Task, TaskContext, TaskResultStatus
from django.utils.module_loading import import_string

from jobqueue.backoff import Backoff, delay
from jobqueue.conf import Settings, settings
from jobqueue.context import JobContext
from jobqueue.states import State


class Unset(Enum):
    """Stands for "not given", so that None can mean "no limit"."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset.UNSET

# What Django's tasks call our states.
STATUS = {
    State.SCHEDULED: TaskResultStatus.READY,
    State.READY: TaskResultStatus.READY,
    State.BLOCKED: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}

# In the contract but not built yet: refused at decoration rather than silently ignored.
NOT_BUILT = (
    "unique",
    "unique_key",
    "idempotency_key",
    "concurrency",
    "concurrency_key",
    "rate",
    "tenant",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask(Task):  # type: ignore[type-arg]  # generic in the stubs only
    """A task of this queue. Each option left UNSET takes the setting's value.

    max_attempts: counted failures until the job is dead.
    timeout: seconds one attempt may run; None for no limit.
    backoff: seconds before the first retry, doubled by each further failure; or a module-level
        function of the failure count that returns the seconds.
    atomic: run a plain function and record its success in one transaction.
    interruptible: whether a timed-out or cancelled plain function is interrupted in its thread.
    expires: seconds after which a job that has not started never will, counted from the enqueue,
        or from `run_after` where that is given.
    """

    max_attempts: int | Unset = UNSET
    timeout: float | Unset | None = UNSET
    backoff: Backoff | Unset = UNSET
    atomic: bool | Unset = UNSET
    interruptible: bool | Unset = UNSET
    expires: float | Unset | None = UNSET
    unique: Any = UNSET
    unique_key: Any = UNSET
    idempotency_key: Any = UNSET
    concurrency: Any = UNSET
    concurrency_key: Any = UNSET
    rate: Any = UNSET
    tenant: Any = UNSET

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> JobTask:
        """Return a task with other values for one call. Raises InvalidTask or TypeError.

        Accepts every field of Django's Task, including those of later versions; None changes
        nothing.
        """
        more = further_fields(self)
        unknown = set(options) - OPTION_NAMES - set(NOT_BUILT) - more
        if unknown:
            known = ", ".join(sorted(OPTION_NAMES | more))
            raise TypeError(f"using() has no option {sorted(unknown)[0]!r}; it knows {known}.")
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            **{name: options.pop(name) for name in more & set(options)},
        }
        changes = {name: value for name, value in given.items() if value is not None}
        return replace(self, **changes, **options)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here and now, without the queue; an atomic one in its transaction."""
        args = self._with_our_context(args)
        if self.atomic is True:
            with transaction.atomic(using=settings().database):
                return self.func(*args, **kwargs)
        return Task.call(self, *args, **kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here and now, without the queue."""
        if self.atomic is True:
            return await sync_to_async(self.call)(*args, **kwargs)
        return await Task.acall(self, *self._with_our_context(args), **kwargs)

    def _with_our_context(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Django's ImmediateBackend knows only its own context, which has no `progress`."""
        if self.takes_context and args and type(args[0]) is TaskContext:
            return JobContext(task_result=args[0].task_result), *args[1:]
        return args


OPTION_NAMES = frozenset(
    field.name
    for field in fields(JobTask)
    if field.default is UNSET and field.name not in NOT_BUILT
)


# Fields of Django's Task that have a column, or belong to the function.
_OWN_PLACE = ("func", "priority", "backend", "queue_name", "run_after", "takes_context")


def further_fields(task: Task[..., Any]) -> set[str]:
    """Return the names of Django's Task fields that this version does not know, such as
    `metadata`: stored as given, and returned."""
    names = {field.name for field in fields(task)}
    return names - OPTION_NAMES - set(NOT_BUILT) - set(_OWN_PLACE)


def options_of(task: Task[..., Any]) -> dict[str, Any]:
    """Return the options that this task sets; none for a task of another backend."""
    if not isinstance(task, JobTask):
        return {}
    values = {name: getattr(task, name) for name in OPTION_NAMES}
    return {name: value for name, value in values.items() if value is not UNSET}


class UnknownTask(LookupError):
    """This code has no task with that path."""


_known: dict[str, Task[..., Any]] = {}


def known(path: str) -> Task[..., Any] | None:
    """Return the task if it was resolved before; never imports."""
    return _known.get(path)


def resolve(path: str) -> Task[..., Any]:
    """Return the task with this dotted path, importing its module.

    Raises UnknownTask: nothing that is not a task is ever called.
    """
    if task := _known.get(path):
        return task
    module = path.rpartition(".")[0]
    if not module:
        raise UnknownTask(f"{path!r} is not a dotted path")
    try:
        found = import_string(path)
    except ImportError as error:
        raise UnknownTask(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UnknownTask(f"importing {module} failed: {error!r}") from error
    if not isinstance(found, Task):
        raise UnknownTask(f"{path} is not a task: decorate it with @task")
    _known[path] = found
    return found


@cache
def signature_of(func: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a task's function."""
    return inspect.signature(func)


@cache
def is_coroutine(func: Callable[..., Any]) -> bool:
    """Whether this is an `async def`; cached, since finding out takes long."""
    return inspect.iscoroutinefunction(func)


@cache
def signature_text(func: Callable[..., Any], takes_context: bool = False) -> str:
    """Return the parameters' names and kinds, without the context. It is stored to distinguish an
    old row from a bad call, and to know a secret among the positional arguments by its name."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature_of(func).parameters.values()
    ][int(takes_context) :]
    return str(inspect.Signature(parameters))[:500]


@cache
def _positional_counts(func: Callable[..., Any]) -> range:
    """How many positional arguments fit without any others: a shortcut for binding them."""
    needed = accepted = 0
    for parameter in signature_of(func).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            needed += parameter.default is parameter.empty
            accepted += 1
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            return range(0)
    return range(needed, accepted + 1)


def check_arguments(
    task: Task[..., Any], args: list[Any] | tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise TypeError, naming the task, when it cannot be called with these arguments."""
    lead: tuple[Any, ...] = (None,) if task.takes_context else ()
    if kwargs or len(lead) + len(args) not in _positional_counts(task.func):
        try:
            signature_of(task.func).bind(*lead, *args, **kwargs)
        except TypeError as error:
            parameters = signature_text(task.func)
            raise TypeError(f"{task.module_path}{parameters}: {error}") from None


def retry_delay(rule: Backoff | str | None, failures: int, settings: Settings) -> float:
    """Return the seconds that a job waits after this many counted failures; for a failure and a
    loss alike. `rule`: the task's or the call's, perhaps as a dotted path. It may raise."""
    found: Backoff | None = import_string(rule) if isinstance(rule, str) else rule
    base, ceiling = settings.backoff_base_seconds, settings.backoff_max_seconds
    return delay(failures, base=base, ceiling=ceiling, rule=found)
