"""The table of steps: order, backoff, and what a failing step may and may not do."""

import asyncio
import contextlib

import psycopg
import pytest

from jobqueue.store.error_classes import CallTimeout
from jobqueue.worker.leadership import maintenance
from jobqueue.worker.leadership.maintenance import Maintenance, Step, StuckError
from jobqueue.worker.outages import OutageLog
from tests.waiting import until


@contextlib.asynccontextmanager
async def running(*steps, stuck_seconds=60.0):
    work = Maintenance(*steps, stuck_seconds=stuck_seconds, outage_log=OutageLog())
    task = asyncio.ensure_future(work.run())
    try:
        yield work, task
    finally:
        task.cancel()
        await asyncio.wait({task})


class Recorder:
    """A step's body: notes each call, and returns or raises what it is given."""

    def __init__(self, *answers):
        self.answers, self.limits = list(answers), []

    async def __call__(self, limit):
        self.limits.append(limit)
        answer = self.answers.pop(0) if self.answers else False
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.spec("S179")
async def test_a_step_with_more_goes_on_at_once_and_starves_no_other():
    order = []

    async def backlog(limit):
        order.append("backlog")
        return len(order) < 50

    async def other(limit):
        order.append("other")
        return False

    async with running(Step("backlog", backlog, interval=60), Step("other", other, interval=60)):
        await until(lambda: len(order) == 50)
    assert "other" in order[:2]


@pytest.mark.spec("S181")
async def test_a_failing_step_is_tried_again_and_stops_no_other():
    failing = Recorder(CallTimeout("away"), ValueError("odd"), False)
    fine = Recorder(*[True] * 20)
    async with running(Step("failing", failing, interval=60), Step("fine", fine, interval=60)):
        await until(lambda: len(fine.limits) > 20)
        await until(lambda: len(failing.limits) == 3)


@pytest.mark.spec("S181")
async def test_an_error_that_comes_five_times_in_a_row_is_let_out(monkeypatch):
    broken = Recorder(*[ValueError("a bug")] * 9)
    step = Step("broken", broken, interval=60)
    monkeypatch.setattr(step.error_backoff, "next_delay", lambda: 0.0)
    async with running(step) as (_, task):
        await asyncio.wait({task}, timeout=10)
        assert isinstance(task.exception(), ValueError)
    assert len(broken.limits) == maintenance.UNEXPECTED_IN_A_ROW


@pytest.mark.spec("S180")
async def test_a_batch_that_times_out_three_times_becomes_smaller(monkeypatch):
    slow = Recorder(*[psycopg.errors.QueryCanceled("timeout")] * 3)
    step = Step("slow", slow, limit=100, interval=60)
    monkeypatch.setattr(step.transient_backoff, "next_delay", lambda: 0.0)
    async with running(step):
        await until(lambda: len(slow.limits) == 4)
    assert slow.limits == [100, 100, 100, 25]


@pytest.mark.spec("S172")
async def test_maintenance_without_any_success_gives_up():
    away = Recorder(*[CallTimeout("away")] * 100)
    async with running(Step("away", away, interval=60), stuck_seconds=0.2) as (_, task):
        await asyncio.wait({task}, timeout=10)
        assert isinstance(task.exception(), StuckError)


async def test_a_hint_during_a_batch_is_not_forgotten():
    ran = []

    async def step(limit):
        ran.append(limit)
        if len(ran) == 1:
            work.wake("step", asyncio.get_running_loop().time())
        return False

    first = Recorder()
    async with running(Step("step", step), Step("first", first, interval=60)) as (work, _):
        await until(lambda: first.limits)
        work.wake("step", asyncio.get_running_loop().time())
        await until(lambda: len(ran) == 2)
