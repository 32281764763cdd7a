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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from jobqueue import conf, operations
from jobqueue.command_line import BadArgumentsError, Options, check, parse_queues
from jobqueue.redact import terminal
from jobqueue.scheduling import declared
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.worker.process import signals as process_signals
from jobqueue.worker.process.recycle import Recycling
from jobqueue.worker.process.supervisor_link import RECYCLED, SupervisorLink, parent
from jobqueue.worker.startup import CannotStartError
from jobqueue.worker.worker import Worker, WorkerOptions

# For the interpreter's own end and exit hooks of other code, even on a very busy machine.
EXIT_SECONDS = 5.0
STUCK_SECONDS = 1.0  # if something is already known to hang


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
        parameters = ConnectionParameters(lambda: conf.connection_parameters(settings.database))
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
