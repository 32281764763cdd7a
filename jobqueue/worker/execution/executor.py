"""One attempt: resolve, check, run, classify, hand over to the completer."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any
from uuid import UUID

from django.tasks import Task
from structlog.contextvars import bind_contextvars

from jobqueue import tasks
from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.context import JobContext, current_job
from jobqueue.logs import get_logger
from jobqueue.store.claims import Claim
from jobqueue.store.finish import Ending
from jobqueue.worker.execution.atomic import Recorder
from jobqueue.worker.execution.containment import LeftoverTasks, current_inflight, watch_forks
from jobqueue.worker.execution.history import History
from jobqueue.worker.execution.invocation import (
    Judge,
    enter_handler_threads,
    run_coroutine,
    run_function,
    watch_swallowed,
)
from jobqueue.worker.execution.loop_calls import LoopCalls
from jobqueue.worker.inflight import Calls, InFlight, InFlightJobs, Stop
from jobqueue.worker.outcomes import classify
from jobqueue.worker.outcomes.attempt_options import Ended, How, Options, options_for
from jobqueue.worker.outcomes.completer import Completer
from jobqueue.worker.outcomes.last_errors import LastErrors
from jobqueue.worker.outcomes.task_signals import TaskSignals
from jobqueue.worker.threads.handler_thread import HandlerThreads
from jobqueue.worker.threads.resolving import resolve_in_thread

log = get_logger()


class Executor:
    """Starts an attempt for each claim, and ends it as an outcome, whatever the handler does."""

    def __init__(
        self,
        settings: Settings,
        registry: InFlightJobs,
        handler_threads: HandlerThreads,
        completer: Completer,
        task_signals: TaskSignals,
        history: History,
        worker: UUID,
    ) -> None:
        self.settings, self.registry, self.handler_threads = settings, registry, handler_threads
        self.completer, self.task_signals, self.history = completer, task_signals, history
        self.recorder = Recorder(worker, settings)
        self.leftover_tasks, self.last_errors = LeftoverTasks(), LastErrors()
        # By task: for calls without options of their own.
        self._default_options: dict[str, Options] = {}
        self._context = copy_context()  # each attempt starts from this, not from another attempt
        self._context.run(enter_handler_threads, handler_threads)
        self._loop_calls = LoopCalls(self._context)
        watch_forks()
        watch_swallowed()

    def start(self, inflight: InFlight) -> None:
        """Begin the attempt of a claim that has just been registered: its first step is made right
        here, which for a short handler is the whole attempt."""
        asyncio.Task(
            self._attempt(inflight),
            loop=asyncio.get_running_loop(),
            context=self._context.copy(),
            eager_start=True,
        )
        inflight.mark_first_step_made(partial(self.stop, inflight, Stop.TIMEOUT))

    def _arm_timeout(self, inflight: InFlight, seconds: float | None) -> None:
        """Limit what runs from now on to this many seconds."""
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        inflight.set_deadline(deadline, partial(self.stop, inflight, Stop.TIMEOUT))

    def give_back(self, inflight: InFlight, *, at_once: bool) -> None:
        """Never started: return the job to its place in the queue, at once or after a moment."""
        self.registry.end(inflight)
        self.completer.put(inflight, classify.unstarted(inflight.claim, at_once=at_once))

    def stop(self, inflight: InFlight, why: Stop) -> None:
        """Ask one handler to stop. If that fails, the others must still be asked."""
        now = loop_time()
        try:
            inflight.request_stop(why, now, self.settings.cancel_seconds)
        except Exception:
            log.exception(
                "handler_stop_failed", job=inflight.claim.id, task=inflight.claim.task, why=why
            )

    def release_with_hold(self, inflight: InFlight, hold: float) -> None:
        """The handler has not ended, and this process is about to: nobody may claim the job for
        `hold` seconds."""
        inflight.mark_released()
        self.completer.put(inflight, classify.interrupted(inflight, hold))

    def record_committed(self, inflight: InFlight) -> None:
        """An atomic handler has committed, and its on_commit hooks still run: it has succeeded."""
        if inflight.fate is None:
            assert inflight.recording is not None and inflight.recorded is not None  # noqa: S101, PT018
            assert inflight.recorded.state is not None  # noqa: S101
            self.completer.recorded(inflight, inflight.recording, inflight.recorded.state)

    async def _attempt(self, inflight: InFlight) -> None:
        """Every attempt ends, even one that fails outside its handler: a claim that never ended
        would keep its slot and its lease."""
        # Here, since the first step is made in `start`.
        inflight.attach_task(asyncio.current_task())
        try:
            await self._run(inflight)
        except (asyncio.CancelledError, GeneratorExit):
            raise  # only the loop's end cancels an attempt outside its handler
        except BaseException as error:
            log.exception("attempt_crashed", job=inflight.claim.id, task=inflight.claim.task)
            if not inflight.ended:
                self._over(inflight, classify.broken(inflight, error, self.settings))

    async def _run(self, inflight: InFlight) -> None:
        """Nothing is awaited between the handler's end and the hand-over of its outcome, so no
        cancellation can come between them."""
        claim = inflight.claim
        if claim.fault:
            self._over(inflight, classify.unreadable(inflight))
            return
        try:
            task = tasks.known(claim.task) or await self._import(inflight)
            tasks.check_arguments(task, claim.args, claim.kwargs)
        except tasks.UnknownTask as error:
            log.warning("task_unknown", job=claim.id, task=claim.task, error=str(error))
            self._over(inflight, classify.parked(claim, str(error)))
            return
        except TypeError as error:
            self._over(inflight, classify.invalid_arguments(inflight, error))
            return
        options = self._options(claim, task)
        if claim.attempts and (options.atomic or self.task_signals.shows_past(task)):
            inflight.keep_past(await self.history.of(claim))
        if inflight.stop_reason is not None or claim.cancel_requested:  # perhaps during the import
            at_once = claim.cancel_requested or inflight.control.stopping
            self._over(inflight, classify.unstarted(claim, at_once=at_once))
            return
        judge = partial(self._judge, inflight, options)
        if not tasks.is_coroutine(task.func):
            self._start_function(inflight, self._begin(inflight, task, options), options, judge)
        elif options.atomic:
            self._over(inflight, classify.cannot_be_atomic(inflight))
        else:
            call = self._begin(inflight, task, options)
            self._conclude(
                inflight,
                await run_coroutine(
                    inflight, self.handler_threads, self.leftover_tasks, call, judge
                ),
            )

    def _options(self, claim: Claim, task: Task[..., Any]) -> Options:
        if claim.options:
            return options_for(claim.options, task, self.settings)
        options = self._default_options.get(claim.task)
        if options is None:
            options = self._default_options[claim.task] = options_for({}, task, self.settings)
        return options

    async def _import(self, inflight: InFlight) -> Task[..., Any]:
        """Import in a handler thread: a module may query the database or take long."""
        handler_thread = inflight.attach_thread(self.handler_threads.borrow())
        # Nothing can stop an import, but one that does not end is reported.
        self._arm_timeout(inflight, self.settings.timeout_seconds)
        found: Task[..., Any]
        try:
            found = await asyncio.wrap_future(
                handler_thread.submit(resolve_in_thread, handler_thread, inflight.claim.task)
            )
        finally:
            inflight.cancel_timer()
            inflight.detach_thread()
            self.handler_threads.give_back(handler_thread)
        return found

    def _begin(
        self, inflight: InFlight, task: Task[..., Any], options: Options
    ) -> Callable[[], Any]:
        """Set up the attempt's own context; return the handler as a call without arguments."""
        claim = inflight.claim
        inflight.mark_started(interruptible=options.interruptible)
        self._arm_timeout(inflight, options.timeout)
        self.task_signals.started(inflight)
        current_inflight.set(inflight)
        current_job.set(claim.id)
        decimal.setcontext(decimal.Context())  # the last one's may be in the context copied
        bind_contextvars(job=claim.id, task=claim.task, attempt=claim.attempts + 1)
        if claim.traceparent:
            bind_contextvars(traceparent=claim.traceparent)
        log.debug("job_started", queue=claim.queue)
        args: tuple[Any, ...] = tuple(claim.args)
        if task.takes_context:
            args = (self._context_of(inflight), *args)
        return partial(task.func, *args, **claim.kwargs)

    def _context_of(self, inflight: InFlight) -> JobContext:
        result, number = self.task_signals.result(inflight), inflight.claim.attempts + 1
        loop = asyncio.get_running_loop()
        inflight.control.on_progress = partial(self._to_loop, loop, self._note_progress, inflight)
        return JobContext(task_result=result, control=inflight.control, number=number)

    def _note_progress(self, inflight: InFlight) -> None:
        # Before it is read, so that what comes in between is noted again.
        inflight.control.noted = False
        self.completer.note_progress(inflight)

    def _start_function(
        self, inflight: InFlight, call: Callable[[], Any], options: Options, judge: Judge
    ) -> None:
        """Start a plain function; `_function_ended` follows by itself."""
        loop = asyncio.get_running_loop()
        if options.atomic:
            call = partial(self.recorder.run, inflight, call)
        interruptible = options.interruptible
        future = run_function(
            inflight, self.handler_threads, call, judge, interruptible=interruptible
        )
        future.add_done_callback(partial(self._function_ended, loop, inflight))

    def _function_ended(
        self, loop: asyncio.AbstractEventLoop, inflight: InFlight, future: Future[Ended]
    ) -> None:
        """Runs in the handler's thread after the handler, where nothing interrupts it."""
        try:
            self._loop_calls.put(loop, partial(self._conclude_function, inflight, future))
        except RuntimeError:
            log.debug("loop_closed")  # the worker is gone; a handler outlived it

    def _to_loop(
        self, loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any
    ) -> None:
        """Called from any thread. Passes the worker's context along, which a handler thread lacks,
        so that log lines about the outcome carry the worker's id."""
        try:
            loop.call_soon_threadsafe(call, *args, context=self._context.copy())
        except RuntimeError:
            log.debug("loop_closed")  # the worker is gone; a handler outlived it

    def _judge(
        self, inflight: InFlight, options: Options, value: Any, error: BaseException | None
    ) -> Ended:
        """Called in any thread. Never raises, whatever the handler's value or error is."""
        ended = self.recorder.judge(inflight, error, options) if options.atomic else None
        ended = ended or Ended(How.PUT, classify.of(inflight, value, error, options, self.settings))
        if error is not None:
            with contextlib.suppress(Exception):
                self.last_errors.settle(inflight, ended.ending, error)
        return ended

    def _conclude_function(self, inflight: InFlight, future: Future[Ended]) -> None:
        if inflight.children or inflight.calls is not None:
            self.leftover_tasks.collect(inflight)
        if inflight.calls is None:
            self._conclude_ended(inflight, future)
        else:  # it has not ended before they have
            rest = self._outlast(inflight, inflight.calls, future)
            inflight.attach_task(asyncio.Task(rest, context=self._context.copy()))

    async def _outlast(self, inflight: InFlight, calls: Calls, future: Future[Ended]) -> None:
        await calls.outlast()
        self._conclude_ended(inflight, future)

    def _conclude_ended(self, inflight: InFlight, future: Future[Ended]) -> None:
        if (error := future.exception()) is None:
            self._conclude(inflight, future.result())
        else:
            log.error(
                "attempt_crashed", job=inflight.claim.id, task=inflight.claim.task, exc_info=error
            )
            ending = classify.broken(inflight, error, self.settings)
            self._conclude(inflight, Ended(How.PUT, ending))

    def _conclude(self, inflight: InFlight, ended: Ended) -> None:
        """The handler and its thread's work have really ended: hand over the outcome."""
        if (thread := inflight.detach_thread()) is not None:
            self.handler_threads.give_back(thread)
        match ended.how:
            case How.RECORDED:
                self._end(inflight)
                self.record_committed(inflight)
            case How.REFUSED:
                self._end(inflight)
                self.completer.refuse(inflight, ended.ending)
            case How.PUT:
                self._over(inflight, ended.ending)

    def _over(self, inflight: InFlight, ending: Ending) -> None:
        self._end(inflight)
        if not inflight.released:
            self.completer.put(inflight, ending)

    def _end(self, inflight: InFlight) -> None:
        inflight.cancel_timer()
        self.registry.end(inflight)
