"""The parts of one worker, wired together; `worker` starts and stops them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobqueue.conf import Settings
from jobqueue.states import Phase
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.store.workers import Identity
from jobqueue.worker.bulk_orders import BulkOrders
from jobqueue.worker.claiming.claimer import Claimer
from jobqueue.worker.execution.default_executor import DefaultExecutor
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.execution.history import History
from jobqueue.worker.execution.stuck import StuckHandlers
from jobqueue.worker.idle_reasons import IdleReasons
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
from jobqueue.worker.outcomes.receiver_threads import ReceiverThreads
from jobqueue.worker.outcomes.task_signals import TaskSignals
from jobqueue.worker.process import stacks
from jobqueue.worker.shutdown import Shutdown
from jobqueue.worker.threads.handler_thread import HandlerThreads


class Components:
    """Each service has a connection of its own, so that none can starve another."""

    def __init__(
        self,
        settings: Settings,
        parameters: ConnectionParameters,
        options: WorkerOptions,
        identity: Identity,
        registry: InFlightJobs,
        shutdown: Shutdown,
        *,
        on_beat: Callable[[], None],
        on_spent: Callable[[], None],
        send_finished: Callable[[Sequence[int]], object],
    ) -> None:
        worker = identity.id
        # The parts call each other in circles. A lambda names one that is made further down.
        self.outage_log, self.stopping = OutageLog(), shutdown.requested.is_set
        self.handler_threads = HandlerThreads()
        self.default_executor = DefaultExecutor(self.handler_threads, settings.concurrency)
        self.receiver_threads = ReceiverThreads(stacks.of_thread)
        self.task_signals = TaskSignals(str(worker), send_finished, self.receiver_threads)
        self.outcome_events = OutcomeEvents(self.task_signals)
        self.sessions = [
            Session(parameters, purpose)
            for purpose in ("claim", "claim 2", "finish", "beat", "watch", "history")
        ]
        *claiming, self.finishing, self.beating, self.watching, reading = self.sessions
        self.completer = Completer(
            self.finishing,
            worker,
            registry,
            self.outcome_events,
            self._error_policy("finish"),
            trust_seconds=settings.trust_seconds,
            on_ready=self._on_ready_again,
            on_soon=lambda seconds: self.claimer.promote_in(seconds),
        )
        self.executor = Executor(
            settings,
            registry,
            self.handler_threads,
            self.completer,
            self.task_signals,
            History(reading),
            worker,
        )
        self.leader: Leader | None = None
        if options.lead:
            self.leader = Leader(
                parameters=parameters,
                worker=worker,
                settings=settings,
                outage_log=self.outage_log,
                on_final=self.task_signals.swept,
            )
        self.dispatcher = Dispatcher(
            str(worker),
            on_ready=lambda queue, priority: self.claimer.wake(queue, priority),
            on_scheduled=self._on_scheduled,
            on_cancel=lambda: self.heartbeat.request_beat(),
            on_vacant=self._on_vacant,
            on_died=self._on_died,
        )
        self.listener: Listener | None = None
        if settings.notify:
            self.listener = Listener(
                parameters, worker, self.dispatcher, self._error_policy("listen")
            )
        self.idle_reasons = IdleReasons(
            registry,
            self.receiver_threads,
            self.outage_log,
            lost_slots=lambda: self.claimer.intake.lost_claims.slots,
            is_spent=lambda: self.claimer.intake.within(1) < 1,
            is_running=lambda: shutdown.phase is Phase.RUNNING,
        )
        self.bulk_orders = BulkOrders(settings.effective_poll_seconds)
        self.heartbeat = Heartbeat(
            self.beating,
            identity,
            settings,
            registry,
            self.executor,
            self._error_policy("beat"),
            listener=self.listener,
            leader=self.leader,
            bulk_orders=self.bulk_orders,
            phase=lambda: shutdown.phase,
            idle_reason=self.idle_reasons.check,
            signals_dropped=lambda: self.receiver_threads.dropped,
            on_beat=on_beat,
            on_overdue=lambda: self.claimer.poll(),
            on_certified_dead=lambda why: shutdown.request(why, failed=True, hurry=True),
        )
        self.claimer = Claimer(
            (claiming[0], claiming[1]),
            worker,
            options.queues,
            settings,
            registry,
            self.executor,
            (self._error_policy("claim"), ErrorPolicy("claim 2", self.outage_log, helper=True)),
            max_attempts=options.recycling.max_jobs,
            is_notified=self._is_notified,
            notify_ready=self._notify_ready,
            is_overdue=lambda: self.heartbeat.overdue,
            on_spent=on_spent,
        )
        self.stuck = StuckHandlers(settings, registry, shutdown.request)
        self.lease_guard = LeaseGuard(settings, registry, self.executor)

    def _error_policy(self, purpose: str) -> ErrorPolicy:
        return ErrorPolicy(purpose, self.outage_log)

    def _is_notified(self) -> bool:
        """Whether notifications arrive. Where they are off, the poll is set to be often enough."""
        return self.listener is None or self.listener.is_proven

    def _notify_ready(self, queue: str) -> None:
        """Wake the other workers: a job in this queue can be claimed."""
        if self.listener is not None:
            self.completer.notify_ready(queue)

    def _on_ready_again(self, queue: str) -> None:
        """A job that ran here can be claimed again: by the others at once if this worker stops."""
        if self.stopping():
            self._notify_ready(queue)
        else:
            self.claimer.wake(queue)

    # Leadership, if this worker may lead.

    def _on_scheduled(self, at: float) -> None:
        if self.leader is not None:
            self.leader.on_scheduled(at)

    def _on_vacant(self) -> None:
        if self.leader is not None:
            self.leader.on_vacant()

    def _on_died(self) -> None:
        if self.leader is not None:
            self.leader.reclaim_now()

    def reconnect(self) -> None:
        """Open every connection afresh before its next use."""
        for session in self.sessions:
            session.renew()
        if self.listener is not None:
            self.listener.reconnect()
        if self.leader is not None:
            self.leader.reconnect()
        self.handler_threads.renew()
        self.default_executor.renew()
        self.claimer.wake()
