"""The story of one worker process: start, serve, drain, cancel, release, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

import structlog

import jobqueue
from jobqueue.conf import Settings
from jobqueue.states import Phase
from jobqueue.store import workers
from jobqueue.store.connections import Session
from jobqueue.store.workers import Identity
from jobqueue.worker import kernel
from jobqueue.worker.claimer import Claimer
from jobqueue.worker.contained import adopt_children
from jobqueue.worker.executor import Executor
from jobqueue.worker.finisher import Finisher
from jobqueue.worker.heartbeat import Heartbeat, Trust
from jobqueue.worker.held import Fate, Registry
from jobqueue.worker.idle import IdleVerdict, IdleWatch
from jobqueue.worker.lanes import Lanes
from jobqueue.worker.leader import Leader
from jobqueue.worker.listener import Listener
from jobqueue.worker.news import News
from jobqueue.worker.orm import tidy_connections
from jobqueue.worker.parent import RECYCLED, Parent
from jobqueue.worker.receivers import Receivers
from jobqueue.worker.recycle import Recycling
from jobqueue.worker.reports import Reports
from jobqueue.worker.services import Services
from jobqueue.worker.shutdown import Shutdown
from jobqueue.worker.start import first_contact
from jobqueue.worker.stuck import Stuck
from jobqueue.worker.watchdog import FORCED, Watchdog
from jobqueue.worker.weather import Outages, Patience

CLOSE_SECONDS = 0.5
LANES_SECONDS = 30.0
log = structlog.get_logger("jobqueue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the command line asks of this worker."""

    queues: Mapping[str, int] = field(default_factory=lambda: {"default": 1})
    name: str = ""
    lead: bool = True
    signals: bool = True  # whether the process's signals are this worker's
    until_idle: bool = False
    max_runtime: float | None = None
    recycling: Recycling = field(default_factory=Recycling)
    parent: Parent | None = None


class Worker:
    """One worker. `run` returns the exit code."""

    def __init__(
        self,
        settings: Settings,
        parameters: dict[str, Any],
        orders: Orders,
        *,
        on_start: Callable[[], object] = lambda: None,
    ) -> None:
        self.settings, self.parameters, self.orders = settings, parameters, orders
        self.on_start = on_start  # in a lane, once the database has answered
        self.identity = _identity(settings, orders)
        self.log = log.bind(worker=str(self.identity.id))
        self.registry = Registry(settings.concurrency)
        self.watchdog = Watchdog(settings, self.registry)
        self.outages = Outages()
        self.stuck: list[int] = []
        self.recycled = False
        self.watch: IdleWatch | None = None
        self.verdict: IdleVerdict | None = None

    def run(self) -> int:
        """Serve until told to stop; the exit code is the contract's."""
        with self.watchdog.running(signals=self.orders.signals):
            self.loop = loop = asyncio.new_event_loop()
            try:
                loop.set_task_factory(adopt_children)
                return loop.run_until_complete(self._serve())
            finally:
                _close_loop(loop)

    async def _serve(self) -> int:
        self._assemble()
        self.watchdog.watch(asyncio.get_running_loop())
        await first_contact(self.beat_session, self.identity, self.settings, self.shutdown)
        if not self.shutdown.requested.is_set():
            await self._prepare()
            self._start()
            await self.shutdown.requested.wait()
            await self._leave()
        return await self._stop()

    def _assemble(self) -> None:
        settings, worker = self.settings, self.identity.id
        self.shutdown = Shutdown(settings, on_begin=self._begin_shutdown)
        self.watchdog.on_signal = self._signal
        self.lanes, self.receivers = Lanes(), Receivers()
        self.reports = Reports(self.receivers)
        self.claim_session = Session(self.parameters, "claim")
        self.finish_session = Session(self.parameters, "finish")
        self.beat_session = Session(self.parameters, "beat")
        self.watch_session = Session(self.parameters, "watch")
        self.finisher = Finisher(
            self.finish_session,
            worker,
            self.registry,
            self.reports,
            self._patience("finish"),
            trust_seconds=settings.lease_seconds - settings.lease_margin_seconds,
        )
        self.executor = Executor(
            settings, self.registry, self.lanes, self.finisher, self.receivers, worker
        )
        self.claimer = Claimer(
            self.claim_session,
            worker,
            self.orders.queues,
            settings,
            self.registry,
            self.executor,
            self._patience("claim"),
        )
        self.news = News(str(worker))
        self.leader = (
            Leader(parameters=self.parameters, worker=worker, settings=settings)
            if self.orders.lead
            else None
        )
        self.listener = (
            Listener(self.parameters, worker, self.news, self._patience("listen"))
            if settings.notify
            else None
        )
        self.stuck_watch = Stuck(settings, self.registry, self._leave_stuck)
        self.heart = Heartbeat(
            self.beat_session,
            self.identity,
            settings,
            self.registry,
            self.executor,
            self._patience("beat"),
            listener=self.listener,
            leader=self.leader,
            phase=lambda: self.shutdown.phase,
            on_beat=self._on_beat,
            leave=lambda why: self.shutdown.request(why, failed=True),
        )
        self.trust = Trust(settings, self.registry, self.executor, self.watchdog.leave)
        self.services = Services(self._service_ended)

    def _patience(self, purpose: str) -> Patience:
        return Patience(purpose, self.outages)

    async def _prepare(self) -> None:
        """What the project declares in code reaches the tables; a failure is told, not fatal."""
        lane = self.lanes.take()
        try:
            await asyncio.wrap_future(lane.submit(_in_lane, self.on_start))
        except Exception:
            self.log.exception("schedules_not_synchronised")
        self.lanes.give_back(lane)

    def _start(self) -> None:
        self.news.on_ready = self.claimer.wake
        self.news.on_beat = self.heart.now
        if self.leader is not None:
            self.news.on_vacant = self.leader.vacant
            self.news.on_scheduled = self.leader.scheduled
            self.news.on_died = self.leader.sweep_now
            self.services.start("leader", self.leader.run())
        self.shutdown.enter(Phase.RUNNING)
        self.services.start("heartbeat", self.heart.run())
        self.services.start("trust", self.trust.run())
        self.services.start("finisher", self.finisher.run())
        if self.listener is not None:
            self.services.start("listener", self.listener.run())
        self._start_watches()
        self.intake = self.services.start("claimer", self.claimer.run())
        self.log.info(
            "worker_started",
            queues=dict(self.orders.queues),
            concurrency=self.settings.concurrency,
            name=self.identity.name,
            pid=self.identity.pid,
        )

    def _start_watches(self) -> None:
        """What may end this worker besides a signal."""
        if self.orders.parent is not None:
            self.services.start("parent", self._follow(self.orders.parent))
        if self.orders.until_idle or self.orders.max_runtime is not None:
            self.services.start("limits", self._limits())

    async def _follow(self, parent: Parent) -> None:
        await parent.gone()
        self.services.expect("parent")
        self.shutdown.request("supervisor died")

    async def _limits(self) -> None:
        """Drain mode, and the longest run."""
        limit = self.orders.max_runtime
        if self.orders.until_idle:
            self.watch = IdleWatch(
                self.watch_session,
                list(self.orders.queues),
                max_runtime=limit,
                held=lambda: len(self.registry),
            )
            self.verdict = await self.watch.wait()
        elif limit is not None:
            await asyncio.sleep(limit)
            self.verdict = IdleVerdict(idle=False)
        self.services.expect("limits")
        idle = self.verdict is not None and self.verdict.idle
        self.shutdown.request("idle" if idle else "max runtime")

    async def _leave(self) -> None:
        """The phases. Each comes after the one before, whatever that met."""
        resigning = asyncio.create_task(self._resign())
        await self.shutdown.drain(self.registry, self.intake)
        await self.claimer.settle()
        await self.shutdown.cancel(self.registry, self.executor)
        running = await self.shutdown.release(self.registry, self.executor, self.finisher)
        self.stuck = [held.claim.id for held in running if not held.ended]
        await self.services.end("finisher", CLOSE_SECONDS)
        resigning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await resigning
        await self.services.cancel_all()

    async def _resign(self) -> None:
        if self.leader is not None:
            await self.leader.resign()
            self.services.expect("leader")

    async def _stop(self) -> int:
        """Say how it went, in the table and as the last line; then close everything, bounded."""
        self.shutdown.enter(Phase.STOPPED)
        await self.executor.strays.close()
        report = self.shutdown.report(self.registry)
        with contextlib.suppress(Exception):
            await self.beat_session.call(
                workers.report, CLOSE_SECONDS, self.identity.id, Phase.STOPPED, report
            )
        await self._settle_verdict()
        await self._flush_receivers()
        for session in self._sessions():
            await session.close()
        self.lanes.close()
        self.receivers.close()
        code = self._exit_code()
        self.log.info("worker_stopped", **report, exit_code=code)
        return code

    def _sessions(self) -> list[Session]:
        return [self.claim_session, self.finish_session, self.beat_session, self.watch_session]

    async def _settle_verdict(self) -> None:
        """Jobs ended after the last look: ask once more who died."""
        if self.watch is not None and self.verdict is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_SECONDS):
                    self.verdict = await self.watch.settle(self.verdict)

    async def _flush_receivers(self) -> None:
        flushed = self.receivers.flush()
        if flushed is not None:
            await asyncio.wait({asyncio.wrap_future(flushed)}, timeout=CLOSE_SECONDS)

    def _exit_code(self) -> int:
        if self.shutdown.failed:
            return 1
        if self.stuck:
            return FORCED
        if self.recycled:
            return RECYCLED
        return self.verdict.code if self.verdict is not None else 0

    @property
    def must_leave_hard(self) -> bool:
        """Whether some thread of a handler is still running."""
        executor = getattr(self.loop, "_default_executor", None)
        threads = getattr(executor, "_threads", ())
        return bool(self.stuck) or any(thread.is_alive() for thread in threads)

    # What reaches the worker from elsewhere.

    def _signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reconnect()
        else:
            self.shutdown.signalled()

    def _reconnect(self) -> None:
        """HUP: every session is opened afresh before its next use; ignored while stopping."""
        if self.shutdown.requested.is_set():
            return
        self.log.info("reconnecting")
        for session in self._sessions():
            session.renew()
        if self.listener is not None:
            self.listener.reconnect()
        self.lanes.renew()
        self.claimer.wake()

    def _begin_shutdown(self) -> None:
        """Intake stops first, everywhere, in the same moment."""
        self.watchdog.expect_end(self.settings.exit_seconds)
        self.claimer.stop()
        self.services.expect("claimer")
        self.heart.now()

    def _on_beat(self) -> None:
        self.watchdog.rearm()
        self.lanes.close_idle()
        self.stuck_watch.look()
        why = self.orders.recycling.due(self.registry.counts[Fate.COMPLETED])
        if why and not self.shutdown.requested.is_set():
            self.recycled = self.orders.parent is not None
            self.shutdown.request(why)

    def _leave_stuck(self, why: str) -> None:
        self.shutdown.request(why)

    def _service_ended(self, name: str, error: BaseException | None) -> None:
        self.shutdown.request(f"service {name} ended: {error!r}", failed=True)


def _identity(settings: Settings, orders: Orders) -> Identity:
    hostname = socket.gethostname()
    return Identity(
        id=uuid4(),
        name=orders.name or f"{hostname}:{os.getpid()}",
        hostname=hostname,
        supervisor=orders.parent.id if orders.parent else "",
        version=jobqueue.__version__,
        queues=list(orders.queues),
        concurrency=settings.concurrency,
        **asdict(kernel.identity()),
    )


def _in_lane(call: Callable[[], object]) -> None:
    try:
        call()
    finally:
        tidy_connections()


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """End what was left on the loop. Threads that a handler left in its default executor are not
    waited for: the command ends the process behind them."""
    left: Sequence[asyncio.Task[Any]] = [t for t in asyncio.all_tasks(loop) if not t.done()]
    for task in left:
        task.cancel()
    if left:
        with contextlib.suppress(RuntimeError):
            loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
