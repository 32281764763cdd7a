"""What a handler started on the loop and left there."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import pytest_asyncio

from jobqueue.worker.execution import containment
from jobqueue.worker.execution.containment import (
    GuardedTask,
    LeftoverTasks,
    adopt_children,
    current_inflight,
)
from jobqueue.worker.inflight import InFlight
from tests.events import captured
from tests.waiting import until
from tests.worker.test_classify import claim

pytestmark = pytest.mark.spec("S73", "A23")


@pytest.fixture
def one():
    return InFlight(claim(), 0.0)


@pytest_asyncio.fixture
async def loop():
    loop = asyncio.get_running_loop()
    loop.set_task_factory(adopt_children)
    yield loop
    loop.set_task_factory(None)


async def endless():
    while True:
        await asyncio.sleep(0.005)


async def test_a_task_belongs_to_the_handler_that_starts_it_and_to_nobody_else(loop, one):
    mine = asyncio.ensure_future(asyncio.sleep(0))
    current_inflight.set(one)
    theirs = [asyncio.ensure_future(asyncio.sleep(0)), asyncio.ensure_future(endless())]
    assert one.children == set(theirs)
    await mine
    await theirs[0]
    await until(lambda: one.children == {theirs[1]})
    LeftoverTasks().collect(one)
    await until(theirs[1].done)


async def test_what_is_left_is_cancelled_and_named_once(loop, one):
    current_inflight.set(one)
    left, leftover_tasks = [asyncio.ensure_future(endless()) for _ in range(3)], LeftoverTasks()
    with captured() as entries:
        leftover_tasks.collect(one)
    assert [(e["event"], e["count"]) for e in entries] == [("tasks_leaked", 3)]
    assert len(leftover_tasks) == 3
    await leftover_tasks.close()
    assert all(task.cancelled() for task in left)
    assert len(leftover_tasks) == 0


async def test_a_task_that_begins_after_the_handlers_end_never_runs(loop, one):
    current_inflight.set(one)
    leftover_tasks, ran = LeftoverTasks(), []

    async def begins():
        ran.append(True)

    leftover_tasks.collect(one)
    late = asyncio.ensure_future(begins())
    await leftover_tasks.close()
    assert late.cancelled()
    assert ran == []


async def test_the_error_of_a_task_left_behind_is_logged(loop, one):
    current_inflight.set(one)
    leftover_tasks = LeftoverTasks()

    async def fails():
        try:
            await asyncio.sleep(600)
        finally:
            raise ValueError("while it unwound")

    task = asyncio.ensure_future(fails())
    await asyncio.sleep(0)
    with captured() as entries:
        leftover_tasks.collect(one)
        await until(task.done)
        await until(lambda: len(leftover_tasks) == 0)
    assert [e["event"] for e in entries] == ["tasks_leaked", "leaked_task_failed"]


async def test_one_that_ignores_its_cancel_is_waited_for_a_bounded_time(loop, one, monkeypatch):
    monkeypatch.setattr(containment, "COLLECT_SECONDS", 0.05)
    current_inflight.set(one)
    leftover_tasks, go = LeftoverTasks(), asyncio.Event()

    async def ignores():
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    task = asyncio.ensure_future(ignores())
    await asyncio.sleep(0)
    leftover_tasks.collect(one)
    await leftover_tasks.close()
    assert not task.done()
    go.set()
    await until(task.done)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_child_that_exits_does_not_end_the_loop(loop, one, kind):
    current_inflight.set(one)

    async def exits():
        await asyncio.sleep(0)
        raise kind("now")

    with pytest.raises(RuntimeError, match=f"raised {kind.__name__}: now"):
        await asyncio.ensure_future(exits())


async def test_contained_steps_behave_like_their_coroutine(loop):
    async def inner():
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "cleaned"

    task = asyncio.Task(GuardedTask(inner()))
    await asyncio.sleep(0)
    assert "inner" in repr(task)
    assert task.get_stack()
    task.cancel()
    assert await task == "cleaned"

    never = asyncio.Task(GuardedTask(inner()))
    never.cancel()
    with pytest.raises(asyncio.CancelledError):
        await never
    unused = GuardedTask(inner())
    unused.close()
