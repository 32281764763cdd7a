"""A handler that forks: told about in the worker, and harmless in the child."""

from __future__ import annotations

import os
import signal

import structlog

from jobqueue.worker.execution.containment import current_held
from jobqueue.worker.threads import orm_connections

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
log = structlog.get_logger("jobqueue")
_watched = False


def watch() -> None:
    """Notice forks from now on. Only those of handlers concern us."""
    global _watched
    if not _watched:
        os.register_at_fork(after_in_parent=_tell, after_in_child=_disinherit)
        _watched = True


def _tell() -> None:
    held = current_held.get()
    if held is not None:
        log.error(
            "handler_forked",
            job=held.claim.id,
            task=held.claim.task,
            note="the child inherited the worker's sockets; start a program instead",
        )


def _disinherit() -> None:
    """A signal sent to the child must not reach the worker through the shared wake-up socket, and
    a query of the child must not go out on the handler's session."""
    if current_held.get() is None:
        return
    signal.set_wakeup_fd(-1)
    for number in HEARD:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)
    orm_connections.forget_connections()
