"""What a handler leaves behind: on the loop, in its context, in its session."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import DatabaseError, transaction

from jobqueue.states import State
from tests.children import wait_until
from tests.worker import jobs
from tests.worker.running import active


@pytest.mark.spec("S60", "S73", "A23", "D86")
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
    assert len(running.executor.leftover_tasks) == 0
    assert running.stop() == 0


@pytest.mark.spec("S73", "D86")
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
    assert len(running.executor.leftover_tasks) == 1
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
    from jobqueue.worker.process import stacks

    inflight = running.inflight(job)
    assert wait_until(lambda: "waits_here" in running.on_loop(stacks.of_handler, inflight))
    shared.events["go"].set()
    running.final(job)
