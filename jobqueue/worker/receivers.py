"""Django's task signals: sent where a slow or broken receiver can hurt nobody."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import structlog
from django.dispatch import Signal
from django.tasks import Task, TaskResult, TaskResultStatus, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTaskBackend
from django.tasks.signals import task_finished, task_started
from django.utils import timezone

from jobqueue.states import FINAL, State
from jobqueue.store.claims import Claim
from jobqueue.store.endings import Ending
from jobqueue.tasks import STATUS
from jobqueue.worker.lanes import Lane

# The project's receivers lag behind the jobs: claim no more until they have caught up.
MOST_WAITING = 1_000
log = structlog.get_logger("jobqueue")
django_log = logging.getLogger("django.tasks")


class Receivers:
    """Sends `task_started` and `task_finished`.

    Django's own two receivers only log and are called at once. As soon as a project has connected
    one of its own, the signals go through a thread, in order, with connections of its own.
    """

    def __init__(self) -> None:
        self._lane: Lane | None = None

    @property
    def is_behind(self) -> bool:
        return self._lane is not None and self._lane.pending > MOST_WAITING

    def started(self, claim: Claim, task: Task[..., Any], worker: str) -> TaskResult[..., Any]:
        """An attempt begins. Returns the result object that the handler's context shows."""
        result: TaskResult[..., Any] = TaskResult(
            task=task,
            id=str(claim.id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=claim.enqueued_at,
            started_at=claim.started_at,
            finished_at=None,
            last_attempted_at=claim.claimed_at,
            args=claim.args,
            kwargs=claim.kwargs,
            backend=claim.backend,
            errors=[],
            worker_ids=[worker] * (claim.attempts + 1),
        )
        self._send_well(task_started, result, logging.INFO)
        return result

    def finished(
        self, result: TaskResult[..., Any], ending: Ending, state: str, value: Any
    ) -> None:
        """The final state is confirmed; nothing is sent for any other."""
        if State(state) not in FINAL:
            return
        object.__setattr__(result, "status", STATUS[State(state)])
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "_return_value", value)
        if ending.error_class:
            error = TaskError(exception_class_path=ending.error_class, traceback=ending.traceback)
            result.errors.append(error)
        failed = result.status == TaskResultStatus.FAILED
        self._send_well(task_finished, result, logging.ERROR if failed else logging.INFO)

    def _send_well(self, signal: Signal, result: TaskResult[..., Any], level: int) -> None:
        """At once where nobody listens but Django, whose line is quickly written; else apart: a
        project's receiver, or its logging handler, may well send an e-mail."""
        heard = django_log.isEnabledFor(level)
        if _has_own(signal) or (heard and not _logs_quickly(level)):
            self._send_apart(signal, result)
        elif heard:
            _send(signal, result)

    def _send_apart(self, signal: Signal, result: TaskResult[..., Any]) -> Future[None]:
        if self._lane is None:
            self._lane = Lane("signals")
        return self._lane.submit(_send_in_lane, self._lane, signal, result)

    def flush(self) -> Future[None] | None:
        """Return a future that is done when everything sent so far has been received."""
        return None if self._lane is None else self._lane.submit(lambda: None)

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()


def _has_own(signal: Signal) -> bool:
    return len(signal.receivers) > 1  # Django connects exactly one of its own


def _logs_quickly(level: int) -> bool:
    """Whether a line of this level only goes to streams and files."""
    logger: logging.Logger | None = django_log
    while logger is not None:
        for handler in logger.handlers:
            slow = not isinstance(handler, logging.StreamHandler | logging.NullHandler)
            if slow and level >= handler.level:
                return False
        logger = logger.parent if logger.propagate else None
    return True


def _send_in_lane(lane: Lane, signal: Signal, result: TaskResult[..., Any]) -> None:
    lane.prepare()
    try:
        _send(signal, result)
    finally:
        lane.tidy()


def _sender(alias: str) -> type[BaseTaskBackend]:
    try:
        return type(task_backends[alias])
    except InvalidTaskBackend:  # it has left the settings since the enqueue
        return BaseTaskBackend


def _send(signal: Signal, result: TaskResult[..., Any]) -> None:
    try:
        answers = signal.send_robust(_sender(result.backend), task_result=result)
    except BaseException as error:  # send_robust lets a SystemExit through
        answers = [(signal, error)]  # type: ignore[list-item]
    for receiver, answer in answers:
        if isinstance(answer, BaseException):
            log.error(
                "signal_receiver_failed",
                receiver=repr(receiver),
                job=result.id,
                exc_info=answer,
            )
