"""One attempt: resolve, check, run, classify, hand over to the finisher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from django.tasks import Task
from structlog.contextvars import bind_contextvars

from jobqueue import tasks
from jobqueue.conf import Settings
from jobqueue.context import JobContext, current_job
from jobqueue.store.claims import Claim
from jobqueue.store.finish import Ending
from jobqueue.worker.execution.atomic import Recorder
from jobqueue.worker.execution.containment import Strays, current_held, watch_forks
from jobqueue.worker.execution.invocation import (
    Settle,
    enter_lanes,
    run_coroutine,
    run_function,
    watch_swallowed,
)
from jobqueue.worker.execution.loop_calls import Inbox
from jobqueue.worker.inflight import Held, Registry, Stop
from jobqueue.worker.outcomes import classify
from jobqueue.worker.outcomes.attempt_options import Ended, How, Options, options_for
from jobqueue.worker.outcomes.completer import Finisher
from jobqueue.worker.outcomes.task_signals import Receivers
from jobqueue.worker.threads.handler_thread import Lane, Lanes

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
        self.recorder = Recorder(worker, settings)
        self.strays = Strays()
        self._usual: dict[str, Options] = {}  # by task: for calls that override nothing
        self._context = copy_context()  # each attempt starts from this, not from another attempt
        self._context.run(enter_lanes, lanes)
        self._inbox = Inbox(self._context)
        watch_forks()
        watch_swallowed()

    def start(self, held: Held) -> None:
        """Begin the attempt of a claim that has just been registered: its first step is made here
        and now, which for a short handler is all of it."""
        asyncio.Task(
            self._attempt(held),
            loop=asyncio.get_running_loop(),
            context=self._context.copy(),
            eager_start=True,
        )
        held.first_step_made = True
        if not held.ended:
            self._set_timer(held)

    def _limit(self, held: Held, seconds: float | None) -> None:
        """What runs from now on may take so long. The timer is set when the first step leaves
        something over: for short handlers it would be the dearest part."""
        loop = asyncio.get_running_loop()
        held.deadline = None if seconds is None else loop.time() + seconds
        if held.first_step_made:
            self._set_timer(held)

    def _set_timer(self, held: Held) -> None:
        if held.deadline is not None:
            loop = asyncio.get_running_loop()
            held.timer = loop.call_at(held.deadline, self.stop, held, Stop.TIMEOUT)

    def give_back(self, held: Held) -> None:
        """Never started: back to its place in the queue."""
        self.registry.end(held)
        self.finisher.put(held, classify.unstarted(held.claim))

    def stop(self, held: Held, why: Stop) -> None:
        """Tell one handler to stop. One that cannot be told must not keep others from hearing."""
        now = asyncio.get_running_loop().time()
        try:
            held.stop(why, now, self.settings.cancel_seconds)
        except Exception:
            log.exception("handler_not_told", job=held.claim.id, task=held.claim.task, why=why)

    def release_with_hold(self, held: Held, hold: float) -> None:
        """The handler has not ended and this process is about to: nobody may claim the job for
        `hold` seconds."""
        held.released = True
        self.finisher.put(held, classify.interrupted(held, hold))

    async def _attempt(self, held: Held) -> None:
        """Every attempt ends, also one that fails where no handler is to blame: a claim that
        nobody ends would keep its slot, and its lease, for ever."""
        held.task = asyncio.current_task()  # the first step is made before `start` could note it
        try:
            await self._run(held)
        except (asyncio.CancelledError, GeneratorExit):
            raise  # nobody ends an attempt outside its handler, but the end of the loop
        except BaseException as error:
            log.exception("attempt_broken", job=held.claim.id, task=held.claim.task)
            if not held.ended:
                self._over(held, classify.broken(held, error, self.settings))

    async def _run(self, held: Held) -> None:
        """From the handler's end to the handing over of its outcome nothing is awaited, so that no
        cancellation can come between."""
        claim = held.claim
        try:
            task = tasks.known(claim.task) or await self._import(held)
            tasks.check_arguments(task, claim.args, claim.kwargs)
        except tasks.UnknownTask as error:
            log.warning("task_unknown", job=claim.id, task=claim.task, error=str(error))
            self._over(held, classify.parked(claim, str(error)))
            return
        except TypeError as error:
            self._over(held, classify.invalid_arguments(held, error))
            return
        if held.told is not None or claim.cancel_requested:  # perhaps during the import
            self._over(held, classify.unstarted(claim))
            return
        options = self._options(claim, task)
        settle = partial(self._settle, held, options)
        if not tasks.is_coroutine(task.func):
            self._run_in_lane(held, self._begin(held, task, options), options, settle)
        elif options.atomic:
            self._over(held, classify.cannot_be_atomic(held))
        else:
            call = self._begin(held, task, options)
            self._conclude(held, await run_coroutine(held, self.lanes, self.strays, call, settle))

    def _options(self, claim: Claim, task: Task[..., Any]) -> Options:
        if claim.options:
            return options_for(claim.options, task, self.settings)
        usual = self._usual.get(claim.task)
        if usual is None:
            usual = self._usual[claim.task] = options_for({}, task, self.settings)
        return usual

    async def _import(self, held: Held) -> Task[..., Any]:
        """In a lane: the import of a module may touch the database, or take long."""
        lane = held.lane = self.lanes.take()
        # Nothing can end an import; but it is told of as what does not end.
        self._limit(held, self.settings.timeout_seconds)
        found: Task[..., Any]
        try:
            found = await asyncio.wrap_future(lane.submit(_resolve_in_lane, lane, held.claim.task))
        finally:
            if held.timer is not None:
                held.timer.cancel()
            held.lane = None
            self.lanes.give_back(lane)
        return found

    def _begin(self, held: Held, task: Task[..., Any], options: Options) -> Callable[[], Any]:
        """Set up the attempt's own context; return the handler as a call without arguments."""
        claim = held.claim
        held.started = True
        self._limit(held, options.timeout)
        self.receivers.started(held)
        current_held.set(held)
        current_job.set(claim.id)
        bind_contextvars(job=claim.id, task=claim.task, attempt=claim.attempts + 1)
        if claim.traceparent:
            bind_contextvars(traceparent=claim.traceparent)
        log.debug("job_started", queue=claim.queue)
        args: tuple[Any, ...] = tuple(claim.args)
        if task.takes_context:
            args = (self._context_of(held), *args)
        return partial(task.func, *args, **claim.kwargs)

    def _context_of(self, held: Held) -> JobContext:
        result, number = self.receivers.result(held), held.claim.attempts + 1
        loop = asyncio.get_running_loop()
        held.control.on_progress = partial(self._to_loop, loop, self._note_progress, held)
        return JobContext(task_result=result, control=held.control, number=number)

    def _note_progress(self, held: Held) -> None:
        held.control.noted = False  # before it is read: what comes meanwhile is noted again
        self.finisher.note_progress(held)

    def _run_in_lane(
        self, held: Held, call: Callable[[], Any], options: Options, settle: Settle
    ) -> None:
        """Start a plain function; its end comes back to the loop by itself."""
        loop = asyncio.get_running_loop()
        if options.atomic:
            call = partial(self.recorder.run, held, call)
        interruptible = options.interruptible
        future = run_function(held, self.lanes, call, settle, interruptible=interruptible)
        future.add_done_callback(partial(self._ended_in_lane, loop, held))

    def _ended_in_lane(
        self, loop: asyncio.AbstractEventLoop, held: Held, future: Future[Ended]
    ) -> None:
        """In the lane's thread, behind the handler, where nothing interrupts it."""
        try:
            self._inbox.put(loop, partial(self._conclude_function, held, future))
        except RuntimeError:
            log.debug("loop_closed")  # the worker is gone; a handler outlived it

    def _to_loop(
        self, loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any
    ) -> None:
        """From any thread. The worker's own context goes along: a lane's thread has none, and what
        is logged of the outcome bears the worker's id."""
        try:
            loop.call_soon_threadsafe(call, *args, context=self._context.copy())
        except RuntimeError:
            log.debug("loop_closed")  # the worker is gone; a handler outlived it

    def _settle(
        self, held: Held, options: Options, value: Any, error: BaseException | None
    ) -> Ended:
        """In any thread. Never raises, whatever the handler's value or error is."""
        ended = self.recorder.judge(held, error) if options.atomic else None
        return ended or Ended(How.PUT, classify.of(held, value, error, options, self.settings))

    def _conclude_function(self, held: Held, future: Future[Ended]) -> None:
        if (error := future.exception()) is None:
            if held.children:
                self.strays.collect(held)
            self._conclude(held, future.result())
        else:
            log.error("attempt_broken", job=held.claim.id, task=held.claim.task, exc_info=error)
            ending = classify.broken(held, error, self.settings)
            self._conclude(held, Ended(How.PUT, ending))

    def _conclude(self, held: Held, ended: Ended) -> None:
        """The handler has really ended, its lane too: settle what follows, all in one go."""
        if held.lane is not None:
            self.lanes.give_back(held.lane)
            held.lane = None
        match ended.how:
            case How.RECORDED:
                self._end(held)
                self.finisher.recorded(held, ended.ending, held.recorded.state)
            case How.REFUSED:
                self._end(held)
                self.finisher.refuse(held, ended.ending)
            case How.PUT:
                self._over(held, ended.ending)

    def _over(self, held: Held, ending: Ending) -> None:
        self._end(held)
        if not held.released:
            self.finisher.put(held, ending)

    def _end(self, held: Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        self.registry.end(held)


def _resolve_in_lane(lane: Lane, path: str) -> Task[..., Any]:
    """Whatever a module raises while it is imported, its task is not known here."""
    lane.prepare()
    try:
        return tasks.resolve(path)
    except tasks.UnknownTask:
        raise
    except BaseException as error:
        raise tasks.UnknownTask(f"importing {path} failed: {error!r}") from None
    finally:
        lane.tidy()
