"""Handlers that do not end although they were asked to: marked, reported, and left behind."""

from __future__ import annotations

import contextlib

import pytest

from jobqueue import operations
from jobqueue.models import Job
from jobqueue.states import State
from jobqueue.worker.execution import stuck
from tests.events import captured
from tests.worker import jobs


@pytest.fixture
def outcome_events():
    """The events of a handler that does not end."""
    with captured() as entries:
        yield lambda: [entry for entry in entries if entry["event"] == "handler_stop_ignored"]


def ignores_everything(shared):
    shared.events["in"].set()
    while not shared.events["go"].is_set():
        with contextlib.suppress(BaseException):
            shared.events["go"].wait(0.01)


def ask_to_stop(job, running, shared):
    assert shared.events["in"].wait(20)
    operations.cancel(Job.objects.get(pk=job.id))
    running.wait(lambda: running.inflight(job).stop_reason)


@pytest.mark.spec("S119", "S120")
def test_a_handler_that_does_not_end_is_reported_with_its_stack_once_a_minute(
    work, body, shared, outcome_events
):
    running = work(cancel_seconds=0.1, heartbeat_seconds=0.3)
    job = jobs.call.enqueue(body(lambda: ignores_everything(shared)))
    ask_to_stop(job, running, shared)
    running.wait(outcome_events)
    inflight = running.inflight(job)
    beats = inflight._stop_sent_at
    running.wait(lambda: inflight._stop_sent_at > beats)  # asked again by later beats
    (report,) = outcome_events()
    assert report["job"] == int(job.id)
    assert "ignores_everything" in report["stack"]
    assert report["reason"] == "cancel"
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts) == (State.RUNNING, 0)
    assert row.not_ending_since is not None
    shared.events["go"].set()
    assert running.final(job).not_ending_since is None


@pytest.mark.spec("S119", "S120")
def test_past_a_limit_the_worker_drains_and_leaves(work, body, shared, monkeypatch):
    monkeypatch.setattr(stuck, "EXIT_SECONDS", 0.3)
    running = work(cancel_seconds=0.2, drain_seconds=0.3, heartbeat_seconds=0.3)
    job = jobs.call.enqueue(body(lambda: ignores_everything(shared)))
    ask_to_stop(job, running, shared)
    running.wait(lambda: running.worker.shutdown.requested.is_set())
    assert "does not end" in running.worker.shutdown.reason
    running.thread.join(20)
    assert running.code == 5
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.cancel_requested_at is not None) == (State.CANCELLED, True)
    shared.events["go"].set()


def test_one_that_cleans_up_in_its_time_is_not_reported(work, body, shared, outcome_events):
    running = work(cancel_seconds=10.0, heartbeat_seconds=0.3)

    async def handler():
        shared.events["in"].set()
        try:
            await jobs.asyncio.sleep(600)
        finally:
            while not shared.events["go"].is_set():
                await jobs.asyncio.sleep(0.01)

    job = jobs.acall.enqueue(body(handler))
    ask_to_stop(job, running, shared)
    seen = running.worker.components.heartbeat.good_at
    running.wait(lambda: running.worker.components.heartbeat.good_at > seen + 0.5)
    assert outcome_events() == []
    shared.events["go"].set()
    assert running.final(job).state == State.CANCELLED
