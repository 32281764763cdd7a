"""Running handlers that are asked to stop: the cancel ladder."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest
from asgiref.sync import async_to_sync

from jobqueue import operations
from jobqueue.exceptions import JobCancelled
from jobqueue.models import Job
from jobqueue.states import Reason, State
from jobqueue.worker.execution import invocation as handlers_module
from jobqueue.worker.execution.containment import LeftoverTasks
from jobqueue.worker.execution.invocation import run_coroutine
from jobqueue.worker.inflight import InFlight
from jobqueue.worker.threads.handler_thread import HandlerThreads
from tests.worker import jobs
from tests.worker.parts import claim
from tests.worker.running import active, attempts


def cancel(job, times=1):
    for _ in range(times):
        operations.cancel(Job.objects.get(pk=job.id), by="a test")


def spin(seen=None):
    """A plain handler that does not look whether it is cancelled."""
    if seen is not None:
        seen.set()
    while True:
        pass


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


@pytest.mark.spec("S118", "S121", "S122", "S125", "D115")
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
        inflight = running.inflight(job)
        assert inflight is not None
        running.on_loop(running.executor.stop, inflight, handlers_module.Stop.CANCEL)
    shared.events["go"].set()
    row = running.final(job)
    assert (row.state, shared.notes) == (State.CANCELLED, ["cleaned"])
    assert [a.outcome for a in attempts(job)] == ["CANCELLED"]


@pytest.mark.spec("S72", "S115", "D115")
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
    monkeypatch.setattr(handlers_module, "GRACE_SECONDS", 0.05)
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
    monkeypatch.setattr(handlers_module, "GRACE_SECONDS", 0.05)
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
def test_a_handler_that_is_not_interruptible_is_only_asked(work, body, shared):
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
            with contextlib.suppress(asyncio.CancelledError):
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


async def test_one_that_is_destroyed_with_its_loop_borrows_no_thread():
    """Its thread would be nobody's."""
    inflight, handler_threads = InFlight(claim(), 0.0), HandlerThreads()
    attempt = run_coroutine(
        inflight, handler_threads, LeftoverTasks(), lambda: asyncio.sleep(600), lambda *ended: ended
    )
    attempt.send(None)
    attempt.close()
    assert inflight.handler_thread is None
    assert not handler_threads._made


@pytest.mark.spec("S119", "S120")
def test_a_handler_that_ignores_everything_does_not_block_the_shutdown(work, body, shared):
    running = work(drain_seconds=0.0, cancel_seconds=0.3)

    async def handler():
        shared.events["in"].set()
        while not shared.events["go"].is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    assert running.stop() == 5
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.reason, row.failures) == (State.SCHEDULED, Reason.HELD, 0)
    assert row.hold_until is not None
    assert [a.outcome for a in attempts(job)] == ["INTERRUPTED"]


@pytest.mark.spec("S122", "D112")
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
