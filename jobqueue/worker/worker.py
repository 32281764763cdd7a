"""The story of one worker process: start, serve, drain, cancel, release, stop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from structlog.contextvars import bind_contextvars

from jobqueue import logs
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.states import Phase
from jobqueue.store import workers
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.events import Note
from jobqueue.worker.components import Components
from jobqueue.worker.execution.containment import adopt_children
from jobqueue.worker.inflight import Fate, InFlight, InFlightJobs
from jobqueue.worker.options import WorkerOptions, identity
from jobqueue.worker.probe import Probe
from jobqueue.worker.process.supervisor_link import RECYCLED, RECYCLED_DIED, SupervisorLink
from jobqueue.worker.process.teardown import Threads, close_loop, run_through
from jobqueue.worker.process.watchdog import FORCED, Watchdog
from jobqueue.worker.run_limits import Limits
from jobqueue.worker.services import Services, within
from jobqueue.worker.shutdown import CLOSE_SECONDS, LAST_SECONDS, UNRECORDED, Shutdown
from jobqueue.worker.startup import first_contact, prepare

# For a claim in flight, when the drain left no time for it.
CLAIM_SECONDS = 0.5
# For finding out what a claim with a lost answer took, when the shutdown leaves no more time.
RECOVER_SECONDS = 0.5
REPORT_SECONDS = 0.5  # part of the last step, for the stop report in the worker's row
log = get_logger()


class Worker:
    """One worker. `run` returns the exit code."""

    def __init__(
        self,
        settings: Settings,
        parameters: ConnectionParameters,
        options: WorkerOptions,
        *,
        on_start: Callable[[], object],
        send_finished: Callable[[Sequence[int]], object],
    ) -> None:
        """Both callbacks run in a handler thread: `on_start` once the database has answered,
        `send_finished` with the ids of jobs that the leader has ended."""
        self.settings, self.parameters, self.options = settings, parameters, options
        self.on_start, self.send_finished = on_start, send_finished
        self.identity = identity(settings, options)
        self.registry = InFlightJobs(settings.concurrency)
        self.watchdog = Watchdog(
            settings, self.registry, on_signal=self._on_signal, on_block=self._on_block
        )
        self.threads = Threads()
        self.stuck: list[int] = []
        self.is_stuck = False  # a receiver or log handler of the project has not returned
        self.recycled = False  # it ends so that its supervisor starts a fresh one
        self.known = False  # its row is in the table
        self._resigning: asyncio.Task[None] | None = None

    def run(self) -> int:
        """Serve until a stop is requested; return the contract's exit code."""
        with (
            logs.delivering(self._log_seconds) as self.delivery,
            self.watchdog.running(signals=self.options.signals),
        ):
            code = self._run_loop()
        self.is_stuck = self.is_stuck or self.delivery.is_stuck
        return code

    def _log_seconds(self) -> float:
        return self.watchdog.left(CLOSE_SECONDS, LAST_SECONDS)

    def _run_loop(self) -> int:
        loop = asyncio.new_event_loop()
        try:
            loop.set_task_factory(adopt_children)
            loop.set_exception_handler(logs.handle_loop_error)
            story = loop.create_task(self._serve(), name="worker")
            return run_through(loop, story, hears_signals=self.options.signals)
        finally:
            close_loop(loop)

    async def _serve(self) -> int:
        bind_contextvars(worker=str(self.identity.id))
        self._assemble()
        try:
            with self.limits.while_starting():
                await self.probe.open()
                beating = self.components.beating
                self.known = await first_contact(
                    beating, self.identity, self.shutdown, self.settings.migrate_command
                )
                if self.known:
                    await prepare(self.components.handler_threads, self.on_start, self.shutdown)
            if not self.shutdown.requested.is_set():
                self._start()
                await self.shutdown.requested.wait()
                await self._shut_down()
            return await self._stop()
        finally:
            await self._close()

    def _assemble(self) -> None:
        self.services = Services(self._service_ended)
        self.shutdown = Shutdown(
            self.settings,
            on_begin=self._begin_shutdown,
            on_phase=lambda: self.components.heartbeat.request_beat(),
            on_end=self.watchdog.expect_end,
        )
        self.components = Components(
            self.settings,
            self.parameters,
            self.options,
            self.identity,
            self.registry,
            self.shutdown,
            on_beat=self._on_beat,
            on_spent=self._on_spent,
            send_finished=self.send_finished,
        )
        self.limits = Limits(
            self.options,
            self.components.watching,
            self.identity.id,
            self.registry,
            self._limit_reached,
        )
        self.probe = Probe(
            self.settings,
            self.options.parent,
            shutdown=self.shutdown,
            registry=self.registry,
            heartbeat=self.components.heartbeat,
            leader=self.components.leader,
        )
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self.components.default_executor)
        self.watchdog.watch(loop)

    def _start(self) -> None:
        components, start = self.components, self.services.start
        self.shutdown.enter(Phase.RUNNING)
        start("heartbeat", components.heartbeat.run())
        start("lease_guard", components.lease_guard.run())
        start("completer", components.completer.run())
        if components.leader is not None:
            start("leader", components.leader.run())
        if components.listener is not None:
            start("listener", components.listener.run())
        if self.options.parent is not None:
            start("parent", self._follow(self.options.parent))
        if self.limits.are_set:
            start("limits", self.limits.run())
        start("bulk_orders", components.bulk_orders.run())
        start("claimer", components.claimer.run())
        log.info(
            "worker_started",
            queues=dict(self.options.queues),
            concurrency=self.settings.concurrency,
            name=self.identity.name,
            pid=self.identity.pid,
        )

    async def _follow(self, parent: SupervisorLink) -> None:
        await parent.gone()
        self.services.expect("parent")
        self.shutdown.request("supervisor died")

    # The end.

    def _begin_shutdown(self) -> None:
        """Claiming stops first, everywhere at the same moment."""
        self.services.expect("claimer", "leader", "limits", "parent", "bulk_orders")
        self.components.claimer.stop()
        self.components.bulk_orders.stop()
        if self.components.leader is not None:
            self._resigning = asyncio.create_task(self.components.leader.resign(), name="resign")

    async def _shut_down(self) -> None:
        """Run the phases in order; each one runs whatever happened in the one before."""
        await self._step("drain", self.shutdown.drain(self.registry, self.services.get("claimer")))
        await self._step("cancel", self._cancel())
        await self._step("release", self._release())

    async def _step(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self.shutdown.failed = True
            log.exception("shutdown_step_failed", step=name)

    async def _cancel(self) -> None:
        """While handlers clean up, find out what a claim that was cut off has taken."""
        settling = asyncio.create_task(self._end_intake(), name="end-intake")
        try:
            await self.shutdown.cancel(self.registry, self.components.executor)
        finally:
            await settling

    async def _end_intake(self) -> None:
        await self.services.end("claimer", min(CLAIM_SECONDS, self.shutdown.cancel_left))
        seconds = max(self.shutdown.cancel_left, RECOVER_SECONDS)
        await within(seconds, "recover claims", self.components.claimer.recover_lost())

    async def _release(self) -> None:
        running = await self.shutdown.release(
            self.registry, self.components.executor, self.components.completer, self.services
        )
        self.stuck = [inflight.claim.id for inflight in running]

    async def _stop(self) -> int:
        """End and close everything, within bounds; report it in the table and in the last line."""
        self.shutdown.enter(Phase.STOPPED)
        end = min(time.monotonic() + CLOSE_SECONDS, self.shutdown.end - LAST_SECONDS)
        if self._resigning is not None:
            await within(end - time.monotonic(), "resign", _awaited(self._resigning))
        await self.services.cancel_all(max(end - time.monotonic(), LAST_SECONDS))
        signals = self.components.receiver_threads
        await signals.end(end - REPORT_SECONDS - time.monotonic())
        report = self.shutdown.report(self.registry)
        report["signals_dropped"], self.is_stuck = signals.dropped, signals.is_stuck
        report["log_records_dropped"] = self.delivery.dropped
        steps = {
            "report": self._report(report, end),
            "stray tasks": self.components.executor.leftover_tasks.close(),
            "verdict": self.limits.confirm(),
        }
        left = end - time.monotonic()
        await asyncio.gather(*(within(left, what, work) for what, work in steps.items()))
        await self._close()
        code = self.watchdog.code = self._exit_code()  # whatever ends the process from now on
        log.info("worker_stopped", **report, exit_code=code)
        return code

    async def _report(self, report: dict[str, object], end: float) -> None:
        if self.known:  # otherwise the database was never reached, and there is no row
            seconds = max(end - time.monotonic(), 0.0)
            await self.components.beating.call(
                workers.report, seconds, self.identity.id, Phase.STOPPED, report
            )

    async def _close(self) -> None:
        """Close everything; a dead server's sockets are dropped. Harmless the second time."""
        closing = [session.close() for session in self.components.sessions]
        await asyncio.gather(self.probe.close(), *closing)
        self.components.handler_threads.close()
        self.components.default_executor.shutdown()
        self.components.receiver_threads.close()

    def _exit_code(self) -> int:
        if self.shutdown.failed:
            return 1
        if self.stuck:
            return FORCED
        if self.registry.counts[Fate.UNRECORDED]:
            return UNRECORDED
        if self.recycled:
            return RECYCLED_DIED if self.limits.died else RECYCLED
        return self.limits.code

    @property
    def must_exit_now(self) -> bool:
        """Whether a handler's code still runs, which the interpreter would wait for at its end."""
        return bool(self.stuck) or self.threads.are_left()

    # Events from other parts.

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.shutdown.signalled(self.watchdog.first_stop_at)
        elif number == signal.SIGHUP and not self.shutdown.requested.is_set():
            log.info("reconnect_started")
            self.components.reconnect()

    def _on_beat(self) -> None:
        self.watchdog.rearm()
        self.components.handler_threads.close_idle()
        self.components.stuck.check()
        if why := self.options.recycling.due():
            self._recycle(why)

    def _on_spent(self) -> None:
        done = self.registry.counts[Fate.COMPLETED]
        self._recycle(f"{done} jobs done, --max-jobs is {self.options.recycling.max_jobs}")

    def _recycle(self, why: str) -> None:
        """Make room for a fresh process; without a supervisor somebody else starts it."""
        if not self.shutdown.requested.is_set():
            self.recycled = self.options.parent is not None
            self.shutdown.request(why)

    def _on_block(self, inflight: InFlight, stack: str, seconds: float) -> None:
        """A handler blocked the event loop, which has since recovered; record the stack for
        operators."""
        if not inflight.blocked:
            inflight.mark_blocked(stack)
            text = f"The handler blocked the event loop for {seconds:.1f} s at:\n{stack}"
            note = Note(job=inflight.claim.id, kind="blocked_loop", note=text)
            self.components.heartbeat.notes.append(note)
            self.components.heartbeat.request_beat()

    def _limit_reached(self, why: str) -> None:
        self.services.expect("limits")
        self.shutdown.request(why)

    def _service_ended(self, name: str, error: BaseException | None) -> None:
        self.shutdown.request(f"service {name} ended: {error!r}", failed=True)


async def _awaited(task: asyncio.Task[None]) -> None:
    await task


__all__ = ["Worker", "WorkerOptions"]
