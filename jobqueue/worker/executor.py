"""One attempt: resolve, check, run, classify, hand over to the finisher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import Any
from uuid import UUID

import structlog
from django.tasks import Task
from structlog.contextvars import bind_contextvars

from jobqueue import tasks
from jobqueue.conf import Settings
from jobqueue.context import JobContext, current_job
from jobqueue.exceptions import LeaseLost
from jobqueue.store.endings import Ending
from jobqueue.worker import outcomes
from jobqueue.worker.atomic import Recorder
from jobqueue.worker.finisher import Finisher
from jobqueue.worker.handlers import Ended, current_held, run_coroutine, run_function
from jobqueue.worker.held import Held, Registry, Stop
from jobqueue.worker.lanes import Lanes, tidy_connections
from jobqueue.worker.receivers import Receivers
from jobqueue.worker.strays import Strays

log = structlog.get_logger("jobqueue")


class Executor:
    """Starts an attempt for each claim, and ends it as an outcome, whatever the handler does."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        lanes: Lanes,
        finisher: Finisher,
        receivers: Receivers,
        worker: UUID,
    ) -> None:
        self.settings, self.registry, self.lanes = settings, registry, lanes
        self.finisher, self.receivers = finisher, receivers
        self.recorder, self.worker = Recorder(worker, settings), str(worker)
        self.strays = Strays()
        self._context = copy_context()  # each attempt starts from this, not from another attempt

    def start(self, held: Held) -> None:
        """Begin the attempt of a claim that has just been registered."""
        held.task = asyncio.get_running_loop().create_task(
            self._attempt(held), context=self._context.copy()
        )

    def give_back(self, held: Held) -> None:
        """Never started: back to its place in the queue."""
        self.registry.end(held)
        self.finisher.put(held, outcomes.unstarted(held.claim))

    def stop(self, held: Held, why: Stop) -> None:
        """Tell one handler to stop."""
        now = asyncio.get_running_loop().time()
        held.stop(why, now, self.settings.cancel_seconds)

    def release_with_hold(self, held: Held, hold: float) -> None:
        """The handler has not ended and this process is about to: nobody may claim the job for
        `hold` seconds."""
        held.released = True
        self.finisher.put(held, outcomes.interrupted(held, hold))

    async def _attempt(self, held: Held) -> None:
        """From the handler's end to the handing over of its outcome nothing is awaited, so that no
        cancellation can come between."""
        claim = held.claim
        try:
            task = tasks.known(claim.task) or await self._import(claim.task)
            tasks.check_arguments(task, claim.args, claim.kwargs)
            options = outcomes.options(claim, task, self.settings)
        except tasks.UnknownTask as error:
            log.warning("task_unknown", job=claim.id, task=claim.task, error=str(error))
            self._over(held, outcomes.parked(claim, str(error)))
        except TypeError as error:
            self._over(held, outcomes.invalid_arguments(held, error))
        except Exception as error:
            self._over(held, outcomes.raised(held, error, None, self.settings))
        else:
            if held.told is not None:  # while its module was being imported
                self._over(held, outcomes.unstarted(claim))
            elif iscoroutinefunction(task.func):
                call = self._begin(held, task, options)
                self._conclude(held, await run_coroutine(held, self.lanes, call), options)
            else:
                self._run_in_lane(held, self._begin(held, task, options), options)

    def _run_in_lane(self, held: Held, call: Callable[[], Any], options: outcomes.Options) -> None:
        """Start a plain function; its end comes back to the loop by itself."""
        loop = asyncio.get_running_loop()
        future = run_function(
            held,
            self.lanes,
            call,
            interruptible=options.interruptible,
            record=partial(self.recorder.record, held) if options.atomic else None,
            database=self.settings.database,
        )
        future.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._conclude, held, done.result(), options)
        )

    async def _import(self, path: str) -> Task[..., Any]:
        """In a lane: the import of a module may touch the database, or take long."""
        lane = self.lanes.take()
        try:
            return await asyncio.wrap_future(lane.submit(_resolve_in_lane, path))
        finally:
            self.lanes.give_back(lane)

    def _begin(
        self, held: Held, task: Task[..., Any], options: outcomes.Options
    ) -> Callable[[], Any]:
        """Set up the attempt's own context; return the handler as a call without arguments."""
        claim, loop = held.claim, asyncio.get_running_loop()
        held.started = True
        held.control.on_progress = partial(self._progressed, held, loop)
        if options.timeout is not None:
            held.timer = loop.call_later(options.timeout, self.stop, held, Stop.TIMEOUT)
        held.result = self.receivers.started(claim, task, self.worker)
        current_held.set(held)
        current_job.set(claim.id)
        bind_contextvars(job=claim.id, task=claim.task, attempt=claim.attempts + 1)
        if claim.traceparent:
            bind_contextvars(traceparent=claim.traceparent)
        log.debug("job_started", queue=claim.queue)
        args: tuple[Any, ...] = tuple(claim.args)
        if task.takes_context:
            args = (_context(held), *args)
        return partial(task.func, *args, **claim.kwargs)

    def _progressed(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self.finisher.note_progress, held)

    def _conclude(self, held: Held, ended: Ended, options: outcomes.Options) -> None:
        """The handler has really ended, its lane too: settle what follows, all in one go."""
        value, error = ended
        if held.children:
            self.strays.collect(held)
        if held.lane is not None:
            self.lanes.give_back(held.lane)
            held.lane = None
        if options.atomic and held.recording is not None:
            self._conclude_atomic(held, error, options)
        elif error is None:
            self._over(held, outcomes.returned(held, value, self.settings))
        else:
            self._over(held, self._raised(held, error, options))

    def _conclude_atomic(
        self, held: Held, error: BaseException | None, options: outcomes.Options
    ) -> None:
        if error is None:
            self._end(held)
            self.finisher.recorded(held, held.recording, held.recorded.state)
        elif isinstance(error, LeaseLost):
            self._end(held)
            self.finisher.refuse(held, held.recording)
        elif self.recorder.is_infrastructure(held, error):
            self._over(held, outcomes.interrupted(held))
        else:
            self._over(held, self._raised(held, error, options))

    def _raised(self, held: Held, error: BaseException, options: outcomes.Options) -> Ending:
        return outcomes.raised(held, error, options.backoff, self.settings)

    def _over(self, held: Held, ending: Ending) -> None:
        self._end(held)
        if not held.released:
            self.finisher.put(held, ending)

    def _end(self, held: Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        self.registry.end(held)


def _resolve_in_lane(path: str) -> Task[..., Any]:
    try:
        return tasks.resolve(path)
    finally:
        tidy_connections()


def _context(held: Held) -> JobContext:
    number = held.claim.attempts + 1
    return JobContext(task_result=held.result, control=held.control, number=number)
