"""Handlers of every kind: told to stop, leaving things behind, ending in every way there is."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import DatabaseError, transaction

from jobqueue import operations
from jobqueue.exceptions import JobCancelled, JobTimeout
from jobqueue.models import Job
from jobqueue.states import Reason, State
from jobqueue.worker import handlers as handlers_module
from tests.children import wait_until
from tests.worker import jobs
from tests.worker.running import active, attempts

UNBEARABLE = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]


def cancel(job, times=1):
    for _ in range(times):
        operations.cancel(Job.objects.get(pk=job.id), by="a test")


def spin(seen=None):
    """A plain handler that does not look whether it is cancelled."""
    if seen is not None:
        seen.set()
    while True:
        pass


# The cancel ladder.


@pytest.mark.spec("S116", "S117", "S118")
def test_a_cancelled_coroutine_gets_one_cancelled_error(work, body, shared):
    running = work()
    caught = []

    async def handler():
        shared.events["in"].set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError as error:
            caught.append(error)
            raise

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    cancel(job)
    row = running.final(job)
    assert (row.state, row.reason) == (State.CANCELLED, Reason.CANCELLED_FORCED)
    assert len(caught) == 1
    assert [a.outcome for a in attempts(job)] == ["CANCELLED"]
    assert (row.failures, row.cancel_requested_by) == (0, "a test")


@pytest.mark.spec("S118", "S121", "S122", "S125")
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("stopping", [False, True])
def test_a_clean_up_is_not_cut_short_by_further_cancels(work, body, shared, times, stopping):
    running = work(cancel_seconds=10.0)

    async def handler():
        shared.events["in"].set()
        try:
            await asyncio.sleep(600)
        finally:
            shared.events["cleaning"].set()
            while not shared.events["go"].is_set():
                await asyncio.sleep(0.01)
            await jobs.aquery("SELECT 1")
            jobs.note("cleaned")

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    cancel(job)
    assert shared.events["cleaning"].wait(20)
    cancel(job, times - 1)
    if stopping:
        running.on_loop(running.worker.shutdown.request, "signal")
        running.on_loop(running.worker.shutdown.signalled)  # skips to cancelling
        running.wait(lambda: running.worker.shutdown.phase == "CANCELLING")
    for _ in range(20):  # as many beats would
        held = running.held(job)
        assert held is not None
        running.on_loop(running.executor.stop, held, handlers_module.Stop.CANCEL)
    shared.events["go"].set()
    row = running.final(job)
    assert (row.state, shared.notes) == (State.CANCELLED, ["cleaned"])
    assert [a.outcome for a in attempts(job)] == ["CANCELLED"]


@pytest.mark.spec("S72", "S115")
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_an_error_while_cleaning_up_is_still_a_cancel(work, body, shared, kind):
    running = work()

    async def ahandler():
        shared.events["in"].set()
        try:
            await asyncio.sleep(600)
        finally:
            raise ValueError("clean-up failed") from KeyError("elsewhere")

    def handler():
        try:
            spin(shared.events["in"])
        finally:
            raise ValueError("clean-up failed") from KeyError("elsewhere")

    job = (
        jobs.call.enqueue(body(handler)) if kind == "plain" else jobs.acall.enqueue(body(ahandler))
    )
    assert shared.events["in"].wait(20)
    cancel(job)
    row = running.final(job)
    assert (row.state, row.failures) == (State.CANCELLED, 0)
    assert [a.outcome for a in attempts(job)] == ["CANCELLED"]


@pytest.mark.spec("S71", "A12")
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_handler_that_returns_after_a_cancel_has_succeeded(work, body, shared, kind):
    running = work()

    async def ahandler():
        shared.events["in"].set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        return "done"

    def handler():
        with contextlib.suppress(JobCancelled):
            spin(shared.events["in"])
        return "done"

    job = (
        jobs.call.enqueue(body(handler)) if kind == "plain" else jobs.acall.enqueue(body(ahandler))
    )
    assert shared.events["in"].wait(20)
    cancel(job)
    row = running.final(job)
    assert (row.state, row.result) == (State.SUCCEEDED, "done")
    assert row.cancel_requested_at is not None


@pytest.mark.spec("S117", "S128")
def test_a_plain_handler_that_looks_ends_by_itself_in_its_own_time(work, body, shared, monkeypatch):
    monkeypatch.setattr(handlers_module, "LOOK_SECONDS", 0.05)
    running = work(cancel_seconds=10.0)

    def handler(context):
        shared.events["in"].set()
        while not context.is_cancelled:
            time.sleep(0.005)
        end = time.monotonic() + 0.5  # ten times as long as it had to look
        while time.monotonic() < end:
            jobs.query("SELECT 1")
        jobs.note("cleaned")
        context.raise_if_cancelled()

    job = jobs.call_with.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    cancel(job)
    row = running.final(job)
    assert (row.state, row.reason) == (State.CANCELLED, Reason.CANCELLED_COOPERATIVE)
    assert shared.notes == ["cleaned"]


@pytest.mark.spec("S85", "S118", "S128")
def test_a_plain_handler_that_does_not_look_is_interrupted(work, body, shared):
    running = work()
    caught = []

    def handler():
        try:
            spin(shared.events["in"])
        except JobCancelled as error:
            caught.append(error)
            raise

    job = jobs.call.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    cancel(job)
    row = running.final(job)
    assert (row.state, row.reason) == (State.CANCELLED, Reason.CANCELLED_FORCED)
    assert len(caught) == 1


@pytest.mark.spec("S118")
def test_a_handler_that_saw_the_cancel_and_goes_on_is_interrupted_in_the_end(
    work, body, shared, monkeypatch
):
    monkeypatch.setattr(handlers_module, "LOOK_SECONDS", 0.05)
    running = work(cancel_seconds=0.5)

    def handler(context):
        shared.events["in"].set()
        while True:
            assert context.is_cancelled in (False, True)

    job = jobs.call_with.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    cancel(job)
    row = running.final(job)
    assert (row.state, row.reason) == (State.CANCELLED, Reason.CANCELLED_FORCED)


class Finalized:
    """Spins in its finalizer, from which no exception gets out."""

    def __init__(self, begun, seconds):
        self.begun, self.seconds = begun, seconds

    def __del__(self):
        self.begun.set()
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            pass


@pytest.mark.spec("S118")
def test_an_interrupt_that_a_finalizer_swallowed_comes_again(work, body, shared):
    running = work(timeout_seconds=0.3)

    def handler():
        one = Finalized(shared.events["in"], 1.0)
        del one
        jobs.note("finalized")
        spin()

    row = running.final(jobs.once.enqueue(body(handler)))
    assert (row.state, row.reason) == (State.DEAD, Reason.TIMED_OUT)
    assert shared.notes == ["finalized"]


@pytest.mark.spec("S118")
def test_the_query_that_a_plain_handler_waits_for_is_cancelled_but_not_its_clean_up(
    work, body, shared
):
    running = work()

    def handler():
        try:
            jobs.query("SELECT pg_sleep(600)")
        finally:
            for _ in range(10):
                jobs.query("SELECT pg_sleep(0.05)")
            jobs.note("cleaned")

    job = jobs.call.enqueue(body(handler))
    running.wait(lambda: active("pg_sleep(600)"))
    cancel(job)
    assert running.final(job).state == State.CANCELLED
    assert shared.notes == ["cleaned"]


@pytest.mark.spec("S118")
def test_the_query_that_a_coroutine_waits_for_is_cancelled_but_not_its_clean_up(work, body, shared):
    running = work()

    async def handler():
        try:
            await jobs.aquery("SELECT pg_sleep(600)")
        finally:
            for _ in range(10):
                await jobs.aquery("SELECT pg_sleep(0.05)")
            jobs.note("cleaned")

    job = jobs.acall.enqueue(body(handler))
    running.wait(lambda: active("pg_sleep(600)"))
    cancel(job)
    assert running.final(job).state == State.CANCELLED
    assert shared.notes == ["cleaned"]


@pytest.mark.spec("S118")
def test_a_plain_handler_that_waits_in_async_to_sync_is_interrupted_there(work, body, shared):
    running = work()

    async def inner():
        shared.events["in"].set()
        await asyncio.sleep(600)

    job = jobs.call.enqueue(body(lambda: async_to_sync(inner)()))
    assert shared.events["in"].wait(20)
    cancel(job)
    assert running.final(job).state == State.CANCELLED


@pytest.mark.spec("S85", "S120")
def test_a_handler_that_is_not_interruptible_is_only_told(work, body, shared):
    running = work(cancel_seconds=0.2)

    def handler():
        shared.events["in"].set()
        shared.events["go"].wait(30)
        jobs.note("undisturbed")

    job = jobs.stubborn.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    cancel(job)
    running.wait(lambda: Job.objects.get(pk=job.id).not_ending_since)
    shared.events["go"].set()
    assert running.final(job).state == State.SUCCEEDED
    assert shared.notes == ["undisturbed"]


@pytest.mark.spec("S119", "S120", "S81")
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_handler_that_ignores_everything_keeps_its_slot_and_gets_no_outcome(
    work, body, shared, kind
):
    running = work(cancel_seconds=0.3, concurrency=2, heartbeat_seconds=0.5)

    def handler():
        shared.events["in"].set()
        while not shared.events["go"].is_set():
            with contextlib.suppress(BaseException):
                shared.events["go"].wait(0.01)

    async def ahandler():
        shared.events["in"].set()
        while not shared.events["go"].is_set():
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0.01)

    job = (
        jobs.call.enqueue(body(handler)) if kind == "plain" else jobs.acall.enqueue(body(ahandler))
    )
    assert shared.events["in"].wait(20)
    cancel(job)
    row = running.wait(
        lambda: Job.objects.filter(pk=job.id, not_ending_since__isnull=False).first()
    )
    assert row.state == State.RUNNING
    assert attempts(job) == []
    assert running.worker.registry.free == 1
    assert running.final(jobs.add.enqueue(1, 2)).result == 3  # a neighbour is not hurt
    shared.events["go"].set()
    row = running.final(job)
    assert (row.state, row.not_ending_since) == (State.SUCCEEDED, None)
    running.quiet()
    assert running.worker.registry.free == 2


@pytest.mark.spec("S119", "S120")
def test_a_handler_that_ignores_everything_does_not_block_the_shutdown(work, body, shared):
    running = work(drain_seconds=0.0, cancel_seconds=0.3)

    async def handler():
        shared.events["in"].set()
        while not shared.events["go"].is_set():
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0.01)

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    assert running.stop() == 5
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.reason, row.failures) == (State.SCHEDULED, Reason.HELD, 0)
    assert row.hold_until is not None
    assert [a.outcome for a in attempts(job)] == ["INTERRUPTED"]


@pytest.mark.spec("S122")
def test_a_shutdown_interrupts_without_counting_and_ends_no_job(work, body, shared):
    running = work(drain_seconds=0.0, concurrency=3)
    begun = threading.Semaphore(0)

    def handler():
        begun.release()
        while True:
            pass

    def refuses():
        try:
            handler()
        except BaseException as error:
            raise jobs.PermanentError("no more") from error

    async def ahandler():
        begun.release()
        await asyncio.sleep(600)

    waiting = [
        jobs.call.enqueue(body(handler)),
        jobs.once.enqueue(body(refuses)),
        jobs.aonce.enqueue(body(ahandler)),
    ]
    for _ in waiting:
        assert begun.acquire(timeout=20)
    assert running.stop() == 0
    for job in waiting:
        row = Job.objects.get(pk=job.id)
        assert (row.state, row.reason, row.failures) == (State.READY, Reason.INTERRUPTED, 0)
        assert [a.outcome for a in attempts(job)] == ["INTERRUPTED"]


# Timeouts.


@pytest.mark.spec("S64", "S65", "A13")
@pytest.mark.parametrize("kind", ["plain", "coroutine", "query", "aquery"])
def test_a_timeout_stops_the_attempt_and_is_counted(work, body, kind):
    running = work(timeout_seconds=0.3)

    async def asleep():
        await asyncio.sleep(600)

    async def aquery():
        await jobs.aquery("SELECT pg_sleep(600)")

    plain = {"plain": spin, "query": lambda: jobs.query("SELECT pg_sleep(600)")}
    if kind in plain:
        job = jobs.once.enqueue(body(plain[kind]))
    else:
        job = jobs.aonce.enqueue(body(asleep if kind == "coroutine" else aquery))
    row = running.final(job)
    assert (row.state, row.reason, row.failures) == (State.DEAD, Reason.TIMED_OUT, 1)
    (attempt,) = attempts(job)
    assert attempt.outcome == "TIMED_OUT"
    assert attempt.error_class == "jobqueue.exceptions.JobTimeout"
    assert "longer than its timeout of 0.3 s" in attempt.error_message
    assert attempt.traceback
    running.wait(lambda: not active("pg_sleep(600)"))
    running.quiet()


@pytest.mark.spec("S64")
def test_the_calls_timeout_beats_the_tasks_and_none_means_none(work, body, shared):
    running = work(timeout_seconds=0.2)
    short = jobs.once.using(timeout=0.1).enqueue(body(spin))
    unlimited = jobs.once.using(timeout=None).enqueue(body(lambda: shared.events["go"].wait(30)))
    assert "timeout of 0.1 s" in running.final(short).last_error
    usual = jobs.once.enqueue(body(spin))
    assert "timeout of 0.2 s" in running.final(usual).last_error
    assert Job.objects.get(pk=unlimited.id).state == State.RUNNING
    shared.events["go"].set()
    assert running.final(unlimited).state == State.SUCCEEDED


@pytest.mark.spec("S64", "S85", "S120")
def test_as_many_slots_are_taken_as_handlers_live_and_no_two_attempts_overlap(work, body, shared):
    """Twenty that do not end at their timeout, four at a time, two attempts each."""
    running = work(concurrency=4, timeout_seconds=0.1, cancel_seconds=0.2)
    lock, living, most, overlaps = threading.Lock(), set(), [], []

    def handler(number):
        with lock:
            if number in living:
                overlaps.append(number)
            living.add(number)
            most.append(len(living))
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            with contextlib.suppress(BaseException):
                time.sleep(0.02)
        with lock:
            living.discard(number)
        raise JobTimeout  # it tells the truth in the end

    name = body(handler)
    waiting = [jobs.call.using(max_attempts=2).enqueue(name, n) for n in range(20)]
    for job in waiting:
        row = running.final(job, 90)
        assert (row.state, row.attempts, row.failures) == (State.DEAD, 2, 2)
    assert max(most) <= 4
    assert overlaps == []
    running.quiet()
    assert running.worker.registry.free == 4


@pytest.mark.spec("S64")
def test_an_interrupted_handler_may_say_that_no_retry_helps(work, body):
    running = work(timeout_seconds=0.1)

    def handler():
        try:
            spin()
        except JobTimeout as error:
            raise jobs.PermanentError("hopeless") from error

    row = running.final(jobs.call.enqueue(body(handler)))
    assert (row.state, row.reason, row.attempts) == (State.DEAD, Reason.PERMANENT, 1)
    assert "hopeless" in row.last_error


# Every way to end.


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


def raise_it(error):
    def handler():
        raise error()

    async def ahandler():
        raise error()

    return handler, ahandler


def cyclic():
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain():
    error = ValueError("0")
    for number in range(1, 5_000):
        following = ValueError(str(number))
        following.__context__ = error
        error = following
    return error


def nested_group():
    error = ValueError("deep")
    for _ in range(50):
        error = BaseExceptionGroup("group", [error, SystemExit(1)])
    return error


class BadMeta(type):
    @property
    def __module__(cls):
        raise ValueError("no module")


class Odd(Exception, metaclass=BadMeta):
    pass


ERRORS = {
    **{kind.__name__: kind for kind in UNBEARABLE},
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "ExceptionGroup": lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(500)]),
    "BaseExceptionGroup": nested_group,
    "unprintable": Unprintable,
    "cyclic": cyclic,
    "long chain": long_chain,
    "huge message": lambda: ValueError("x" * 50_000_000),
    "NUL": lambda: ValueError("a\0b"),
    "surrogate": lambda: ValueError("a\ud800b"),
    "odd class": Odd,
    "JobTimeout": JobTimeout,
    "JobCancelled": JobCancelled,
    "bad Snooze": type("BadSnooze", (jobs.Snooze,), {"__init__": lambda self: None}),
    "bad RetryLater": type("BadLater", (jobs.RetryLater,), {"__init__": lambda self: None}),
}


@pytest.mark.spec("S60", "S72", "S73", "A4", "A23")
def test_every_exit_of_a_handler_is_a_recorded_failure_and_hurts_nobody(work, body, shared):
    running = work(concurrency=4)
    neighbour = jobs.call.enqueue(body(lambda: shared.events["go"].wait(50) and "unhurt"))
    running.state(neighbour, State.RUNNING)
    waiting = {}
    for name, error in ERRORS.items():
        handler, ahandler = raise_it(error)
        waiting[name, "plain"] = jobs.once.enqueue(body(handler))
        waiting[name, "coroutine"] = jobs.aonce.enqueue(body(ahandler))
    for what, job in waiting.items():
        row = running.final(job, 50)
        assert row.state == State.DEAD, what
        (attempt,) = attempts(job)
        assert attempt.outcome == "FAILED", what
        assert attempt.error_class, what
        assert len(attempt.error_message) <= 4_000, what
        assert len(attempt.traceback) <= 16_000, what
    shared.events["go"].set()
    assert running.final(neighbour).result == "unhurt"
    assert running.stop() == 0


@pytest.mark.spec("S72")
@pytest.mark.parametrize("error", [asyncio.CancelledError, JobCancelled, GeneratorExit])
def test_a_cancel_that_nobody_asked_for_is_retried(work, body, shared, error):
    running = work()

    def handler():
        jobs.note("run")
        if len(shared.notes) == 1:
            raise error
        return len(shared.notes)

    async def ahandler():
        return handler()

    for task, function in ((jobs.call, handler), (jobs.acall, ahandler)):
        shared.notes.clear()
        job = task.enqueue(body(function))
        assert running.final(job).result == 2
        assert [a.outcome for a in attempts(job)] == ["FAILED", "SUCCEEDED"]


@pytest.mark.spec("S73")
def test_endless_recursion_is_a_failure(work, body):
    running = work()

    def handler():
        return handler()

    async def ahandler():
        return await ahandler()

    for task, function in ((jobs.once, handler), (jobs.aonce, ahandler)):
        job = task.enqueue(body(function))
        assert running.final(job).state == State.DEAD
        (attempt,) = attempts(job)
        assert attempt.error_class == "builtins.RecursionError"
        assert len(attempt.traceback) <= 16_000


@pytest.mark.spec("S73")
def test_a_coroutine_that_cancels_itself_is_a_failure(work, body):
    running = work()

    async def handler():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def only_asks():
        asyncio.current_task().cancel()
        return "reached"

    assert running.final(jobs.aonce.enqueue(body(handler))).state == State.DEAD
    assert running.final(jobs.aonce.enqueue(body(only_asks))).result == "reached"
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3


# What a handler leaves behind.


@pytest.mark.spec("S60", "S73", "A23")
def test_tasks_left_behind_end_with_their_job_and_hurt_nobody(work, body, shared):
    running = work()

    async def endless():
        while True:
            await asyncio.sleep(0.01)

    async def fails():
        await asyncio.sleep(0)
        raise ValueError("left behind")

    async def exits():
        await asyncio.sleep(0)
        raise SystemExit(7)

    async def breeds():
        try:
            await asyncio.sleep(600)
        finally:
            shared.extra["tasks"].append(asyncio.ensure_future(endless()))

    async def queries():
        await jobs.aquery("SELECT pg_sleep(600)")

    shared.extra["tasks"] = []

    async def handler():
        for function in (endless, fails, exits, breeds, queries):
            shared.extra["tasks"].append(asyncio.ensure_future(function()))
        await asyncio.sleep(0.1)
        return "left"

    job = jobs.acall.enqueue(body(handler))
    assert running.final(job).result == "left"
    running.wait(lambda: len(shared.extra["tasks"]) == 6)
    running.wait(lambda: all(task.done() for task in shared.extra["tasks"]))
    running.wait(lambda: not active("pg_sleep(600)"))
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
    assert len(running.executor.strays) == 0
    assert running.stop() == 0


@pytest.mark.spec("S73")
def test_a_task_left_behind_that_ignores_its_cancel_blocks_neither_job_nor_exit(work, body, shared):
    running = work()

    async def ignores():
        while not shared.events["go"].is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def handler():
        asyncio.ensure_future(ignores())  # noqa: RUF006
        await asyncio.sleep(0.05)

    assert running.final(jobs.acall.enqueue(body(handler))).state == State.SUCCEEDED
    assert len(running.executor.strays) == 1
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
    assert running.stop() == 0


@pytest.mark.spec("S73")
def test_a_child_task_that_exits_is_an_error_that_its_parent_sees(work, body):
    running = work()

    async def exits():
        raise SystemExit(7)

    async def handler():
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(exits())
        except ExceptionGroup as many:
            return [str(error) for error in many.exceptions]

    row = running.final(jobs.aonce.enqueue(body(handler)))
    assert row.result == ["a task of the handler raised SystemExit: 7"]


@pytest.mark.spec("S63")
def test_context_variables_do_not_reach_the_next_job(work, body):
    running = work(concurrency=1)
    variable = contextvars.ContextVar("variable", default="clean")

    def handler():
        found = variable.get()
        variable.set("dirty")
        return found

    async def ahandler():
        return [await sync_to_async(handler)(), handler()]

    plain, coroutine = body(handler), body(ahandler)
    for _ in range(3):
        assert running.final(jobs.call.enqueue(plain)).result == "clean"
        assert running.final(jobs.acall.enqueue(coroutine)).result == ["clean", "dirty"]


@pytest.mark.spec("S81")
def test_a_broken_transaction_does_not_reach_the_next_job(work, body):
    running = work(concurrency=1)

    def breaks():
        transaction.atomic().__enter__()
        Group.objects.create(name="lost")
        with contextlib.suppress(DatabaseError):
            jobs.query("SELECT nonsense")

    async def abreaks():
        await sync_to_async(breaks)()

    for task, function in ((jobs.call, breaks), (jobs.acall, abreaks)):
        assert running.final(task.enqueue(body(function))).state == State.SUCCEEDED
        job = jobs.once.enqueue(body(lambda: Group.objects.create(name="next").delete() and None))
        row = running.final(job)
        assert row.state == State.SUCCEEDED, row.last_error
    assert not Group.objects.exists()


@pytest.mark.spec("S85")
def test_errors_in_threads_of_the_default_pool_are_contained(work, body):
    running = work()

    def exits():
        raise SystemExit(3)

    async def handler():
        await asyncio.to_thread(exits)

    row = running.final(jobs.aonce.enqueue(body(handler)))
    assert row.state == State.DEAD
    assert "SystemExit" in row.last_error
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3


def test_stacks_name_the_handlers_own_lines(work, body, shared):
    running = work()

    async def waits_here():
        shared.events["in"].set()
        while not shared.events["go"].is_set():
            await asyncio.sleep(0.01)

    job = jobs.acall.enqueue(body(waits_here))
    assert shared.events["in"].wait(20)
    from jobqueue.worker import stacks

    held = running.held(job)
    assert wait_until(lambda: "waits_here" in running.on_loop(stacks.of_handler, held))
    shared.events["go"].set()
    running.final(job)
