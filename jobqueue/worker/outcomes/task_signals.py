"""Django's task signals, sent where a slow or broken receiver does no harm."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.dispatch import Signal
from django.tasks import Task, TaskResult, TaskResultStatus, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTaskBackend
from django.tasks.signals import task_finished, task_started
from django.utils import timezone

from jobqueue import task_results, tasks
from jobqueue.exceptions import as_handled
from jobqueue.logs import get_logger
from jobqueue.states import FINAL, State
from jobqueue.store.finish import Ending
from jobqueue.worker.inflight import InFlight
from jobqueue.worker.outcomes.heard import (
    are_failures_heard,
    django_log,
    has_own,
    is_heard,
    logs_quickly,
)
from jobqueue.worker.outcomes.last_errors import LastError
from jobqueue.worker.outcomes.receiver_threads import ReceiverThreads

log = get_logger()
SWEPT = 0  # in place of a job: for jobs that the leader ended


class TaskSignals:
    """Sends `task_started` and `task_finished`.

    Django's own two receivers only log; they are called at once, if any handler would take the
    line. Once a project has connected its own receiver, signals are sent in threads with
    connections of their own, in order for each job.
    """

    def __init__(
        self,
        worker: str,
        send_finished: Callable[[Sequence[int]], object],
        threads: ReceiverThreads,
    ) -> None:
        self._worker, self._send_finished, self.threads = worker, send_finished, threads
        self._is_heard = is_heard(logging.INFO)

    def result(self, inflight: InFlight) -> TaskResult[..., Any]:
        """Return the TaskResult of a running attempt, made when it is first asked for."""
        claim, task = inflight.claim, tasks.known(inflight.claim.task)
        if inflight.result is None and task is not None:
            made = task_results.build(
                task_results.as_enqueued(
                    task,
                    backend=claim.backend,
                    queue=claim.queue,
                    priority=claim.priority,
                    max_attempts=claim.max_attempts,
                    options=claim.options,
                ),
                id=claim.id,
                state=State.RUNNING,
                args=claim.args,
                kwargs=claim.kwargs,
                backend=claim.backend,
                enqueued_at=_moment(claim.enqueued_at),
                started_at=_moment(claim.started_at),
                last_attempted_at=_moment(claim.claimed_at),
                # Not read if nothing shows them: then only their number is known.
                past=inflight.past or [task_results.Past(self._worker, "", "")] * claim.attempts,
                holder=self._worker,
            )
            inflight.keep_result(made)
        assert inflight.result is not None  # noqa: S101  # what runs here has a task
        return inflight.result

    def shows_past(self, task: Task[..., Any]) -> bool:
        """Whether earlier attempts' errors are shown to the handler or a receiver."""
        return task.takes_context or has_own(task_started) or has_own(task_finished)

    def started(self, inflight: InFlight) -> None:
        """An attempt begins."""
        if self._is_heard or has_own(task_started):
            self._send_well(task_started, self.result(inflight), logging.INFO)
        elif has_own(task_finished):
            self.result(inflight)  # now, before the handler can change its arguments

    def finished(self, inflight: InFlight, ending: Ending, state: str) -> None:
        """A started job's final state is confirmed; nothing is sent for any other state."""
        last_error = inflight.take_error()
        if not inflight.started or state not in FINAL:
            return
        status = tasks.STATUS[State(state)]
        failed = status == TaskResultStatus.FAILED
        if not (failed or self._is_heard or has_own(task_finished)):
            return
        result = self.result(inflight)
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        if ending.result is not None:
            object.__setattr__(result, "_return_value", json.loads(ending.result))
        if ending.error_class:
            error = TaskError(exception_class_path=ending.error_class, traceback=ending.traceback)
            result.errors.append(error)
        if state != State.DEAD:  # a cancel came first
            last_error = None
        level = logging.ERROR if failed else logging.INFO
        self._send_well(task_finished, result, level, last_error)

    def swept(self, ids: Sequence[int]) -> None:
        """The leader has ended these jobs: call the signal's receivers."""
        if are_failures_heard():
            self.threads.put(SWEPT, partial(self._send_finished, ids))

    def _send_well(
        self,
        signal: Signal,
        result: TaskResult[..., Any],
        level: int,
        last_error: LastError | None = None,
    ) -> None:
        """Send at once if only Django's own receiver is connected, whose line is quickly written;
        otherwise in a thread: a project's receiver or logging handler may send an e-mail."""
        heard = django_log.isEnabledFor(level)
        if has_own(signal) or (heard and not logs_quickly(level)):
            self.threads.put(int(result.id), partial(_send, signal, result, last_error))
        elif heard:
            _send(signal, result, last_error)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _sender(alias: str) -> type[BaseTaskBackend]:
    try:
        return type(task_backends[alias])
    except InvalidTaskBackend:  # it was removed from the settings after the enqueue
        return BaseTaskBackend


def _send(signal: Signal, result: TaskResult[..., Any], last_error: LastError | None) -> None:
    send = partial(signal.send_robust, _sender(result.backend), task_result=result)
    try:
        answers = send() if last_error is None else as_handled(last_error.error, send)
    except BaseException as error:  # send_robust lets a SystemExit through
        answers = [(signal, error)]  # type: ignore[list-item]
    finally:
        if last_error is not None:
            last_error.forget()
    for receiver, answer in answers:
        if isinstance(answer, BaseException):
            log.error(
                "signal_receiver_failed",
                receiver=repr(receiver),
                job=result.id,
                exc_info=answer,
            )
