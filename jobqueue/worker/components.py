"""The parts of one worker, put together; who does what with whom is told in `worker`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from jobqueue.conf import Settings
from jobqueue.store.connections import Session
from jobqueue.store.workers import Identity
from jobqueue.worker.claiming.claimer import Claimer
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.execution.stuck import StuckHandlers
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.leadership.election import Leader
from jobqueue.worker.lease.heartbeat import Heartbeat
from jobqueue.worker.lease.lease_guard import LeaseGuard
from jobqueue.worker.notifications.dispatch import Dispatcher
from jobqueue.worker.notifications.listener import Listener
from jobqueue.worker.options import WorkerOptions
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from jobqueue.worker.outcomes.completer import Completer
from jobqueue.worker.outcomes.events import OutcomeEvents
from jobqueue.worker.outcomes.task_signals import TaskSignals
from jobqueue.worker.shutdown import Shutdown
from jobqueue.worker.threads.handler_thread import HandlerThreads

log = structlog.get_logger("jobqueue")


class Components:
    """Each service has a connection of its own, so that none can starve another."""

    def __init__(
        self,
        settings: Settings,
        parameters: dict[str, Any],
        options: WorkerOptions,
        identity: Identity,
        registry: InFlightJobs,
        shutdown: Shutdown,
        *,
        on_beat: Callable[[], None],
        leave_hard: Callable[[str], None],
        tell_finished: Callable[[Sequence[int]], object],
    ) -> None:
        worker = identity.id
        self.outage_log, self.stopping = OutageLog(), shutdown.requested.is_set
        self.handler_threads, self.task_signals = (
            HandlerThreads(),
            TaskSignals(str(worker), tell_finished),
        )
        self.outcome_events = OutcomeEvents(self.task_signals)
        self.sessions = [
            Session(parameters, purpose)
            for purpose in ("claim", "claim 2", "finish", "beat", "watch")
        ]
        *claiming, self.finishing, self.beating, self.watching = self.sessions
        for session in self.sessions:
            session.on_kept = _not_reconnected
        self.completer = Completer(
            self.finishing,
            worker,
            registry,
            self.outcome_events,
            self._patience("finish"),
            trust_seconds=settings.lease_seconds - settings.lease_margin_seconds,
        )
        self.executor = Executor(
            settings, registry, self.handler_threads, self.completer, self.task_signals, worker
        )
        self.claimer = Claimer(
            (claiming[0], claiming[1]),
            worker,
            options.queues,
            settings,
            registry,
            self.executor,
            (self._patience("claim"), ErrorPolicy("claim 2", self.outage_log, helper=True)),
        )
        self.dispatcher = Dispatcher(str(worker))
        self.leader: Leader | None = None
        if options.lead:
            self.leader = Leader(
                parameters=parameters,
                worker=worker,
                settings=settings,
                outage_log=self.outage_log,
            )
        self.listener: Listener | None = None
        if settings.notify:
            self.listener = Listener(parameters, worker, self.dispatcher, self._patience("listen"))
        self.stuck = StuckHandlers(settings, registry, shutdown.request)
        self.heartbeat = Heartbeat(
            self.beating,
            identity,
            settings,
            registry,
            self.executor,
            self._patience("beat"),
            listener=self.listener,
            leader=self.leader,
            phase=lambda: shutdown.phase,
            on_beat=on_beat,
            leave=lambda why: shutdown.request(why, failed=True),
        )
        self.lease_guard = LeaseGuard(settings, registry, self.executor, leave_hard)
        self._introduce()

    def _patience(self, purpose: str) -> ErrorPolicy:
        return ErrorPolicy(purpose, self.outage_log)

    def _introduce(self) -> None:
        """Who is told what is heard."""
        self.dispatcher.on_ready = self.claimer.wake
        self.completer.on_ready = self._ready
        self.completer.on_soon = self.claimer.promote_in
        self.dispatcher.on_beat = self.heartbeat.now
        self.heartbeat.on_overdue = self.claimer.poll
        self.claimer.is_overdue = lambda: self.heartbeat.overdue
        listener = self.listener
        if listener is not None:
            self.claimer.is_told = lambda: listener.is_proven
            self.claimer.tell_ready = self.completer.tell_ready
        if self.leader is not None:
            self.leader.sweeping.on_final = self.task_signals.swept
            self.dispatcher.on_vacant = self.leader.vacant
            self.dispatcher.on_scheduled = self.leader.scheduled
            self.dispatcher.on_died = self.leader.sweep_now

    def _ready(self, queue: str) -> None:
        """A job that ran here can be claimed again: by others at once when this worker leaves."""
        tell = self.claimer.tell_ready if self.stopping() else self.claimer.wake
        tell(queue)

    def reconnect(self) -> None:
        """Have every connection opened afresh before its next use."""
        for session in self.sessions:
            session.renew()
        if self.listener is not None:
            self.listener.reconnect()
        if self.leader is not None:
            self.leader.reconnect()
        self.handler_threads.renew()
        self.claimer.wake()


def _not_reconnected(error: Exception) -> None:
    log.warning("reconnect_failed", error=str(error).strip())
