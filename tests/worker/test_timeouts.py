"""Attempts that run longer than they may."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from jobqueue.exceptions import JobTimeout
from jobqueue.models import Job
from jobqueue.states import Reason, State
from jobqueue.worker.inflight import InFlight
from tests.worker import jobs
from tests.worker.running import active, attempts
from tests.worker.test_invocation import spin


@pytest.mark.spec("S64", "S65", "A13", "D19")
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


@pytest.mark.spec("S64", "S85", "S120", "D82")
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
        raise JobTimeout  # it lets the timeout through in the end

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


# A timer is set only for what has not ended in its first step.


@pytest.mark.spec("S64")
def test_what_blocks_the_loop_beyond_its_time_is_stopped_at_its_first_await(work, body, shared):
    async def blocks():
        time.sleep(0.4)  # noqa: ASYNC251
        shared.notes.append("blocked")
        await asyncio.sleep(600)

    running = work()
    job = jobs.aonce.using(timeout=0.2).enqueue(body(blocks))
    row = running.final(job)
    assert (row.state, row.reason) == (State.DEAD, Reason.TIMED_OUT)
    assert shared.notes == ["blocked"]


@pytest.mark.spec("S64")
def test_what_ends_in_its_first_step_has_succeeded_and_needs_no_timer(work, body, monkeypatch):
    timers, real = [], InFlight._set_timer

    def noted(self, overdue):
        timers.append(self.claim.id)
        real(self, overdue)

    async def at_once():
        time.sleep(0.3)  # noqa: ASYNC251
        return "late"

    async def later():
        await asyncio.sleep(0.01)
        return "in time"

    monkeypatch.setattr(InFlight, "_set_timer", noted)
    running = work()
    job = jobs.aonce.using(timeout=0.1).enqueue(body(at_once))
    assert running.final(job).result == "late"
    other = jobs.aonce.using(timeout=5.0).enqueue(body(later))
    assert running.final(other).result == "in time"
    assert timers == [int(other.id)]


LATE = """
import asyncio, time

from django.tasks import task

time.sleep(0.4)


@task
async def soon():
    await asyncio.sleep(0.01)
    return "in time"


@task
async def never():
    await asyncio.sleep(600)
"""


@pytest.mark.spec("S64")
@pytest.mark.parametrize("timeout", [0.2, None])
def test_its_time_counts_from_the_start_and_not_from_the_import(
    work, tmp_path, monkeypatch, timeout
):
    name = f"imported_late_{'with' if timeout else 'without'}"
    (tmp_path / f"{name}.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)
    running = work()

    def enqueue(task):
        job = Job.objects.create(
            task=f"{name}.{task}", options={"timeout": timeout}, max_attempts=1
        )
        running.on_loop(running.worker.components.claimer.wake)
        return job

    assert running.final(enqueue("soon")).result == "in time"
    if timeout:
        row = running.final(enqueue("never"))
        assert row.reason == Reason.TIMED_OUT
        (attempt,) = attempts(row)
        assert (attempt.finished_at - attempt.started_at).total_seconds() >= timeout
