"""A handler's first step is made while its round is being started: what it may do there."""

from __future__ import annotations

import asyncio
import contextvars
import time

import pytest
from structlog.contextvars import get_contextvars

from jobqueue.models import Job, JobEvent
from jobqueue.states import FINAL, State
from jobqueue.worker.claiming.claim_round import Intake
from tests.worker import jobs

COLOUR = contextvars.ContextVar("colour", default="none")


def together(running, *calls):
    """Enqueue so that one round claims them all; return their rows when all have ended."""
    running.on_loop(running.worker.components.claimer.selector._ready.clear)
    made = Job.objects.bulk_create(
        [
            Job(task=f"tests.worker.jobs.{task.func.__name__}", args=list(args))
            for task, *args in calls
        ]
    )
    running.on_loop(running.worker.components.claimer.wake)
    keys = [job.pk for job in made]
    running.wait(lambda: not Job.objects.filter(pk__in=keys).exclude(state__in=FINAL).exists())
    return [Job.objects.get(pk=key) for key in keys]


@pytest.mark.spec("S59", "S73", "S39", "D79")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_what_it_raises_ends_neither_the_claimer_nor_its_siblings(work, body, error):
    async def bad():
        raise error

    async def good():
        return "well"

    running = work(poll_seconds=60.0)
    name, other = body(bad), body(good)
    rows = together(running, (jobs.aonce, name), (jobs.acall, other), (jobs.aonce, name))
    for row in (rows[0], rows[2]):
        assert row.state == State.DEAD or row.failures == 1
    assert rows[1].result == "well"
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
    running.quiet()


@pytest.mark.spec("S59", "S222", "S221", "D14")
def test_one_that_blocks_the_loop_there_is_named_and_its_siblings_run(work, body):
    async def blocks():
        time.sleep(2.5)  # noqa: ASYNC251
        return "late"

    async def good():
        return "well"

    running = work(poll_seconds=60.0)
    rows = together(running, (jobs.acall, body(blocks)), (jobs.acall, body(good)))
    assert [row.result for row in rows] == ["late", "well"]
    event = running.wait(lambda: JobEvent.objects.filter(kind="blocked_loop").first())
    assert event.job == rows[0].pk
    assert "time.sleep(2.5)" in event.note


@pytest.mark.spec("S63")
def test_what_it_sets_in_its_context_reaches_neither_the_claimer_nor_its_siblings(
    work, body, monkeypatch
):
    seen, accept = [], Intake.accept

    def noted(self, *args, **kwargs):
        accept(self, *args, **kwargs)
        seen.append((COLOUR.get(), get_contextvars().get("job")))

    async def paints():
        before = COLOUR.get()
        COLOUR.set("red")
        return before

    monkeypatch.setattr(Intake, "accept", noted)
    running = work(poll_seconds=60.0)
    name = body(paints)
    rows = together(running, (jobs.acall, name), (jobs.acall, name))
    assert [row.result for row in rows] == ["none", "none"]
    assert set(seen) == {("none", None)}


@pytest.mark.spec("S59", "S154", "S73")
def test_a_callback_that_leaves_does_not_end_the_loop(work, body):
    """Given to the loop itself, it runs in nobody's task: asyncio lets its SystemExit out."""

    def leave():
        raise SystemExit(7)

    async def handler():
        for _ in range(3):
            asyncio.get_running_loop().call_soon(leave)
            await asyncio.sleep(0.01)
        return "well"

    running = work()
    assert running.final(jobs.acall.enqueue(body(handler))).result == "well"
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
    assert running.stop() == 0
    assert running.worker.registry.claimed == 2
    assert sum(running.worker.registry.counts.values()) == 2
