"""From the command line to a running worker: parse, check, start, exit."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.core.checks import ERROR
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTaskBackend
from django.utils.module_loading import autodiscover_modules

from jobqueue import conf, operations
from jobqueue.backend import JobQueueBackend
from jobqueue.checks import check_backend
from jobqueue.conf import Settings
from jobqueue.redact import terminal
from jobqueue.scheduling import declared
from jobqueue.worker.process import signals as process_signals
from jobqueue.worker.process.recycle import Recycling
from jobqueue.worker.process.supervisor_link import RECYCLED, SupervisorLink, parent
from jobqueue.worker.startup import CannotStartError
from jobqueue.worker.worker import Worker, WorkerOptions

# For the interpreter's own end and exit hooks of other code, even on a very busy machine.
EXIT_SECONDS = 5.0
STUCK_SECONDS = 1.0  # if something is already known to hang


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
        return dict.fromkeys(_own_queues(), 1)
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


def _own_backends() -> list[JobQueueBackend]:
    backends = [task_backends[alias] for alias in task_backends.settings]
    return [backend for backend in backends if isinstance(backend, JobQueueBackend)]


def _own_queues() -> list[str]:
    names: dict[str, None] = {}
    for backend in _own_backends():
        names.update(dict.fromkeys(sorted(backend.queues) or ["default"]))
    return list(names)


def _refuse_unknown_queues(names: Iterable[str]) -> None:
    """Otherwise a typo would make a worker that waits for ever."""
    backends = _own_backends()
    if not all(backend.queues for backend in backends):
        return  # the enqueue accepts any name, too
    known = _own_queues()
    for name in (given.removeprefix(conf.EXCEPT) for given in names):
        if name != conf.EVERY_QUEUE and name not in known:
            raise BadArgumentsError(
                f"--queues: {name!r} is in no QUEUES of TASKS, so no job can be in it: "
                f"write some of {', '.join(known)}."
            )


def _check_tasks() -> None:
    """Report faults in TASKS as the system checks do. Raises ImproperlyConfigured."""
    try:
        backends = _own_backends()
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


def launch(options: Options, command: Sequence[str] | None = None) -> int:
    """Run a worker, or several under a supervisor; return the exit code."""
    above = parent()
    with process_signals.deaf(supervised=above is not None):
        return _launch(options, above, command)


def _launch(options: Options, above: SupervisorLink | None, command: Sequence[str] | None) -> int:
    try:
        settings = check(options)
    except BadArgumentsError as error:
        return _say(error, 2)
    except ImproperlyConfigured as error:
        return _say(error, 1)
    if options.processes > 1 and above is None:
        from jobqueue import supervisor

        words = command or supervisor.command_line()
        return supervisor.run(
            words,
            options.processes,
            settings,
            restart=not options.until_idle,
            max_runtime=options.max_runtime,
        )
    autodiscover_modules("tasks")
    worker_options = WorkerOptions(
        queues=parse_queues(options.queues),
        name=options.name if above is None or not options.name else f"{options.name}-{above.child}",
        lead=options.lead,
        until_idle=options.until_idle,
        max_runtime=_runtime(options, above),
        recycling=Recycling(max_jobs=options.max_jobs, max_memory=options.max_memory),
        parent=above,
    )
    try:
        parameters = conf.connection_parameters(settings.database)
        worker = Worker(
            settings,
            parameters,
            worker_options,
            on_start=declared.synchronise,
            send_finished=operations.send_task_finished,
        )
        with _frozen():
            code = worker.run()
    except CannotStartError as error:
        return _say(error, 1)
    if worker.must_exit_now:
        _exit_now(code)
    _bound_the_exit(Exit(code, worker.watchdog.deadline, worker.is_stuck))
    return code


def _runtime(options: Options, above: SupervisorLink | None) -> float | None:
    """A replacement has what its supervisor has left, not all of it again."""
    if above is not None and above.max_runtime is not None:
        return above.max_runtime
    return options.max_runtime


def _say(error: Exception, code: int) -> int:
    """Print one clear sentence per fault; a user's mistake never gets a traceback."""
    for line in str(error).splitlines():
        sys.stderr.write(f"runworker: {terminal(line)}\n")
    return code


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Exempt what is loaded by now from garbage collection: each scan of all of it would stop every
    handler for a twentieth of a second."""
    was_frozen = gc.get_freeze_count() > 0  # by the caller
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker exits after its last log line."""

    code: int
    deadline: float | None  # monotonic
    is_stuck: bool  # a receiver or log handler of the project has not returned

    @property
    def left(self) -> float:
        return 0.0 if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)


def _bound_the_exit(end: Exit) -> None:
    """The deadline covers the interpreter's own end too, where a library's exit hook may hang. If a
    receiver or log handler hangs already, `logging` would wait for its lock. The exit code stands.
    Registered last, so that it runs before all other hooks."""
    ending = threading.Event()

    def enforce() -> None:
        ending.wait()
        left = end.left or EXIT_SECONDS
        time.sleep(min(left, STUCK_SECONDS) if end.is_stuck else left)
        with contextlib.suppress(Exception):  # stderr cannot be written to
            if not end.is_stuck:
                faulthandler.dump_traceback()
        os._exit(end.code)

    def arm() -> None:
        for number in process_signals.HANDLED:
            signal.signal(number, signal.SIG_IGN)  # everything is recorded: the exit code stands
        ending.set()
        with contextlib.suppress(Exception):  # in case the thread never gets to run
            faulthandler.dump_traceback_later(end.left + 2 * EXIT_SECONDS, exit=True)

    # The interpreter starts no threads once it has begun to end.
    threading.Thread(target=enforce, name="exit", daemon=True).start()
    atexit.register(arm)


def _exit_now(code: int) -> None:
    """Exit now: everything is recorded, and the interpreter's own end would wait for a handler's
    thread that is still running."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(code)


__all__ = ["RECYCLED", "BadArgumentsError", "Options", "launch", "parse_queues"]
