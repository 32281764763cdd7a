"""The command line of a worker: its options, read and checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.core.checks import ERROR
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.tasks.exceptions import InvalidTaskBackend

from jobqueue import conf, queue_names
from jobqueue.checks import check_backend
from jobqueue.conf import Settings


class BadArgumentsError(ValueError):
    """The command line cannot be understood; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `runworker`, as given."""

    queues: str | None = None
    concurrency: int | None = None
    processes: int = 1
    until_idle: bool = False
    max_runtime: float | None = None
    max_jobs: int | None = None
    max_memory: int | None = None
    name: str = ""
    lead: bool = True
    probe: str | None = None


def parse_queues(text: str | None) -> dict[str, int]:
    """Return the queues and their weights; without a value, those of this app's backends.

    `NAME[:WEIGHT],…`; spaces around names are ignored. `*` stands for every name, new ones too;
    `-NAME` with it leaves one out (returned with the weight 0). Raises BadArgumentsError.
    """
    if text is None:
        return dict.fromkeys(queue_names.configured(), 1)
    weights: dict[str, int] = {}
    for part in text.split(","):
        name, colon, weight = part.strip().partition(":")
        if name.startswith(conf.EXCEPT):
            _exclude(part.strip(), weights)
            continue
        if name != conf.EVERY_QUEUE and not conf.QUEUE_NAME.match(name):
            raise BadArgumentsError(
                f"--queues: {part.strip()!r} is not a queue name: write {conf.QUEUE_NAME_RULE}."
            )
        if name in weights:
            raise BadArgumentsError(f"--queues: {name!r} is named twice: name each queue once.")
        if colon and not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= 1000):
            raise BadArgumentsError(
                f"--queues: the weight of {name!r} is {weight!r}: write a whole number "
                "from 1 to 1000."
            )
        weights[name] = int(weight) if colon else 1
    if conf.EVERY_QUEUE not in weights and (left_out := [n for n in weights if not weights[n]]):
        raise BadArgumentsError(
            f"--queues: {left_out[0]!r} leaves a queue out of nothing: write '*,{left_out[0]}'."
        )
    if both := [name for name in weights if conf.EXCEPT + name in weights]:
        raise BadArgumentsError(f"--queues: {both[0]!r} is named and left out: write one of them.")
    return weights


def _exclude(part: str, weights: dict[str, int]) -> None:
    name = part.removeprefix(conf.EXCEPT)
    if not conf.QUEUE_NAME.match(name):
        raise BadArgumentsError(
            f"--queues: {part!r} leaves out no queue: write '-' and a name without a weight, with "
            f"{conf.QUEUE_NAME_RULE}."
        )
    if part in weights:
        raise BadArgumentsError(f"--queues: {part!r} is named twice: name each queue once.")
    weights[part] = 0


def _refuse_unknown_queues(names: Iterable[str]) -> None:
    """Otherwise a typo would make a worker that waits for ever."""
    for name in (given.removeprefix(conf.EXCEPT) for given in names):
        if name != conf.EVERY_QUEUE and (fault := queue_names.fault(name)):
            raise BadArgumentsError(f"--queues: {fault}")


def _check_tasks() -> None:
    """Report faults in TASKS as the system checks do. Raises ImproperlyConfigured."""
    try:
        backends = queue_names.own_backends()
    except InvalidTaskBackend as error:
        raise ImproperlyConfigured(f"TASKS: {error}") from None
    if not backends:
        raise ImproperlyConfigured(
            "TASKS: no entry has the BACKEND 'jobqueue.backend.JobQueueBackend', so there is "
            "nothing to run: write one."
        )
    messages = [message for backend in backends for message in check_backend(backend)]
    errors = [f"{m.msg} {m.hint}" for m in messages if m.level >= ERROR]
    if errors:
        raise ImproperlyConfigured("\n".join(errors))


def check(options: Options) -> Settings:
    """Return the settings, with the command line's values in place. Raises BadArgumentsError or
    ImproperlyConfigured before anything starts."""
    given = {} if options.queues is None else parse_queues(options.queues)
    bounds: dict[str, tuple[Any, float]] = {
        "--processes": (options.processes, 1),
        "--max-jobs": (options.max_jobs, 1),
        "--max-memory": (options.max_memory, 1),
        "--max-runtime": (options.max_runtime, 0),
    }
    for name, (value, low) in bounds.items():
        if value is not None and not (low <= value <= 10**9):
            raise BadArgumentsError(f"{name}: {value} is out of range: write {low} or more.")
    for name, key, value in (
        ("--concurrency", "CONCURRENCY", options.concurrency),
        ("--probe", "PROBE_ADDRESS", options.probe),
    ):
        if value is not None and (wish := conf.wish(key, value)):
            wish = wish.removeprefix("None, ").removeprefix("None or ")
            raise BadArgumentsError(f"{name}: {value!r} will not do: write {wish}.")
    _check_tasks()
    _refuse_unknown_queues(given)
    settings = conf.settings()
    if connections[settings.database].in_atomic_block:
        raise ImproperlyConfigured(
            f"a transaction is open here on {settings.database!r}, and a worker sees nothing of "
            "what is enqueued in it: call it outside, in a test from a TransactionTestCase."
        )
    if options.concurrency is not None:
        settings = replace(settings, concurrency=options.concurrency)
    if options.probe is not None:
        settings = replace(settings, probe_address=options.probe)
    return settings
