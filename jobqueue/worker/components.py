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
from jobqueue.worker.execution.stuck import Stuck
from jobqueue.worker.inflight import Registry
from jobqueue.worker.leadership.election import Leader
from jobqueue.worker.lease.heartbeat import Heartbeat
from jobqueue.worker.lease.lease_guard import Trust
from jobqueue.worker.notifications.dispatch import News
from jobqueue.worker.notifications.listener import Listener
from jobqueue.worker.options import Orders
from jobqueue.worker.outages import Outages, Patience
from jobqueue.worker.outcomes.completer import Finisher
from jobqueue.worker.outcomes.events import Reports
from jobqueue.worker.outcomes.task_signals import Receivers
from jobqueue.worker.shutdown import Shutdown
from jobqueue.worker.threads.handler_thread import Lanes

log = structlog.get_logger("jobqueue")


class Crew:
    """Each service has a connection of its own, so that none can starve another."""

    def __init__(
        self,
        settings: Settings,
        parameters: dict[str, Any],
        orders: Orders,
        identity: Identity,
        registry: Registry,
        shutdown: Shutdown,
        *,
        on_beat: Callable[[], None],
        leave_hard: Callable[[str], None],
        tell_finished: Callable[[Sequence[int]], object],
    ) -> None:
        worker = identity.id
        self.outages, self.stopping = Outages(), shutdown.requested.is_set
        self.lanes, self.receivers = Lanes(), Receivers(str(worker), tell_finished)
        self.reports = Reports(self.receivers)
        self.sessions = [
            Session(parameters, purpose)
            for purpose in ("claim", "claim 2", "finish", "beat", "watch")
        ]
        *claiming, self.finishing, self.beating, self.watching = self.sessions
        for session in self.sessions:
            session.on_kept = _not_reconnected
        self.finisher = Finisher(
            self.finishing,
            worker,
            registry,
            self.reports,
            self._patience("finish"),
            trust_seconds=settings.lease_seconds - settings.lease_margin_seconds,
        )
        self.executor = Executor(
            settings, registry, self.lanes, self.finisher, self.receivers, worker
        )
        self.claimer = Claimer(
            (claiming[0], claiming[1]),
            worker,
            orders.queues,
            settings,
            registry,
            self.executor,
            (self._patience("claim"), Patience("claim 2", self.outages, helper=True)),
        )
        self.news = News(str(worker))
        self.leader: Leader | None = None
        if orders.lead:
            self.leader = Leader(
                parameters=parameters,
                worker=worker,
                settings=settings,
                outages=self.outages,
            )
        self.listener: Listener | None = None
        if settings.notify:
            self.listener = Listener(parameters, worker, self.news, self._patience("listen"))
        self.stuck = Stuck(settings, registry, shutdown.request)
        self.heart = Heartbeat(
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
        self.trust = Trust(settings, registry, self.executor, leave_hard)
        self._introduce()

    def _patience(self, purpose: str) -> Patience:
        return Patience(purpose, self.outages)

    def _introduce(self) -> None:
        """Who is told what is heard."""
        self.news.on_ready = self.claimer.wake
        self.finisher.on_ready = self._ready
        self.finisher.on_soon = self.claimer.promote_in
        self.news.on_beat = self.heart.now
        self.heart.on_overdue = self.claimer.poll
        self.claimer.is_overdue = lambda: self.heart.overdue
        listener = self.listener
        if listener is not None:
            self.claimer.is_told = lambda: listener.is_proven
            self.claimer.tell_ready = self.finisher.tell_ready
        if self.leader is not None:
            self.leader.sweeping.on_final = self.receivers.swept
            self.news.on_vacant = self.leader.vacant
            self.news.on_scheduled = self.leader.scheduled
            self.news.on_died = self.leader.sweep_now

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
        self.lanes.renew()
        self.claimer.wake()


def _not_reconnected(error: Exception) -> None:
    log.warning("not_reconnected", error=str(error).strip())
