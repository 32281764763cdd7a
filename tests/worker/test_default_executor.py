"""What handlers give to the loop's default executor is a part of them."""

import asyncio
import threading
import time

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from jobqueue import operations
from jobqueue.models import Job
from jobqueue.states import State
from jobqueue.worker.process import stacks
from tests.worker import jobs
from tests.worker.running import sql

pytestmark = pytest.mark.django_db(transaction=True)


async def to_thread(function, *args):
    return await asyncio.to_thread(function, *args)


async def in_executor(function, *args):
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


async def insensitive(function, *args):
    return await sync_to_async(function, thread_sensitive=False)(*args)


WAYS = [to_thread, in_executor, insensitive]


def session():
    """The server process behind the connection of this thread."""
    return jobs.query("SELECT pg_backend_pid()")[0]


def alive(pid):
    return bool(sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))


@pytest.mark.parametrize("way", WAYS)
def test_after_a_cut_connection_the_next_call_has_a_good_one(work, body, shared, way):
    running = work(concurrency=2)

    async def handler():
        first = await way(session)
        shared.extra["cut"] = first
        shared.events["opened"].set()
        while not shared.events["is cut"].is_set():
            await asyncio.sleep(0.005)
        return first != await way(session)

    job = jobs.aonce.enqueue(body(handler))
    assert shared.events["opened"].wait(20)
    sql("SELECT pg_terminate_backend(%s, 5000)", shared.extra["cut"])
    shared.events["is cut"].set()
    assert running.final(job).result is True


@pytest.mark.parametrize("way", WAYS)
def test_an_open_transaction_of_one_handler_swallows_no_write_of_another(work, body, effects, way):
    running = work(concurrency=3)

    async def leaves_it_open():
        await way(lambda: jobs.query("BEGIN"))

    async def writes(number):
        await way(lambda: jobs.query("INSERT INTO test_effects VALUES (%s)", number))

    left, name = body(leaves_it_open), body(writes)
    for number in range(20):
        jobs.aonce.enqueue(left)
        jobs.aonce.enqueue(name, number)
    running.wait(lambda: Job.objects.filter(state=State.SUCCEEDED).count() == 40)
    assert sorted(number for (number,) in effects()) == list(range(20))


@pytest.fixture
def effects(transactional_db):
    """A table of what handlers wrote, read by another connection than theirs."""
    sql("CREATE TABLE test_effects (number int)")
    yield lambda: sql("SELECT number FROM test_effects")
    sql("DROP TABLE test_effects")


def test_the_connections_are_closed_after_the_handlers_last_call(work, body):
    running = work(concurrency=2)

    async def handler():
        return [await to_thread(session), await to_thread(session)]

    job = jobs.acall.enqueue(body(handler))
    first, second = running.final(job).result
    assert first == second  # kept for the handler's calls
    running.wait(lambda: not alive(first))


def block(shared):
    shared.events["in"].set()
    shared.events["go"].wait(30)


@pytest.mark.parametrize("plain", [True, False])
def test_a_handler_has_not_ended_before_its_calls_have(work, body, shared, plain):
    running = work(concurrency=1)

    async def leaves_a_call():
        asyncio.get_running_loop().run_in_executor(None, block, shared)

    job = (
        jobs.call.enqueue(body(lambda: async_to_sync(leaves_a_call)()))
        if plain
        else jobs.acall.enqueue(body(leaves_a_call))
    )
    assert shared.events["in"].wait(20)
    inflight = running.wait(lambda: running.inflight(job))
    running.wait(lambda: inflight.on_late_child)  # the function itself has returned
    later = jobs.add.enqueue(1, 2)
    time.sleep(0.3)
    assert not inflight.ended
    assert Job.objects.get(pk=later.id).state == State.READY  # its slot is taken
    assert "in block" in stacks.of_handler(inflight)
    shared.events["go"].set()
    assert running.final(job).state == State.SUCCEEDED
    assert running.final(later).state == State.SUCCEEDED


@pytest.mark.parametrize("way", WAYS)
def test_a_cancel_ends_the_query_of_a_call(work, body, shared, way):
    running = work(cancel_seconds=20.0)

    def sleeps():
        shared.events["in"].set()
        jobs.query("SELECT pg_sleep(600)")

    async def handler():
        await way(sleeps)

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    operations.cancel(Job.objects.get(pk=job.id))
    assert running.final(job).state == State.CANCELLED


def test_a_cancel_is_raised_in_a_call_that_runs(work, body, shared):
    running, ended = work(cancel_seconds=20.0), []

    def works():
        shared.events["in"].set()
        try:
            while True:
                time.sleep(0.005)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    async def handler():
        await asyncio.to_thread(works)

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    operations.cancel(Job.objects.get(pk=job.id))
    assert running.final(job).state == State.CANCELLED
    assert ended == ["JobCancelled"]


def test_no_more_calls_run_at_once_than_there_are_slots_and_none_is_lost(work, body):
    running, most, now, lock = work(concurrency=2), [0], [0], threading.Lock()

    def counted(number):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return number

    async def handler():
        return await asyncio.gather(*(asyncio.to_thread(counted, n) for n in range(20)))

    job = jobs.acall.enqueue(body(handler))
    assert running.final(job).result == list(range(20))
    assert most == [2]


@pytest.mark.parametrize("cancelled", [False, True])
def test_calls_that_nobody_awaits_are_made_unless_the_handler_is_to_stop(
    work, body, shared, cancelled
):
    running, begun = work(concurrency=1), []

    async def handler():
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, block, shared)
        for number in range(3):
            loop.run_in_executor(None, begun.append, number)

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    running.wait(lambda: running.inflight(job).on_late_child)
    if cancelled:
        operations.cancel(Job.objects.get(pk=job.id))
        running.wait(lambda: running.inflight(job).stop_reason)
    shared.events["go"].set()
    assert running.final(job).state == State.SUCCEEDED
    assert begun == ([] if cancelled else [0, 1, 2])


def test_a_query_that_the_handler_gave_up_is_cancelled(work, body, shared):
    running = work(concurrency=1)

    async def handler():
        try:
            async with asyncio.timeout(0.2):
                await asyncio.to_thread(jobs.query, "SELECT pg_sleep(600)")
        except TimeoutError:
            return "gave up"

    job = jobs.acall.enqueue(body(handler))
    assert running.final(job).result == "gave up"


def test_no_call_can_be_made_after_the_handlers_end(work, body, shared):
    running, refused = work(concurrency=1), []

    async def late():
        try:
            await asyncio.sleep(600)
        finally:
            try:
                await asyncio.to_thread(int)
            except RuntimeError as error:
                refused.append(str(error))

    async def handler():
        shared.extra["task"] = asyncio.create_task(late())
        await asyncio.sleep(0)

    job = jobs.acall.enqueue(body(handler))
    assert running.final(job).state == State.SUCCEEDED
    running.wait(lambda: refused)
    assert refused == ["The handler has ended, and with it its database connections."]


def test_handlers_cannot_keep_a_service_from_looking_up_a_name(work, body, shared):
    """psycopg does that in the same executor, before it connects anew."""
    running = work(concurrency=1)

    async def handler():
        await asyncio.gather(*(asyncio.to_thread(block, shared) for _ in range(50)))

    job = jobs.acall.enqueue(body(handler))
    assert shared.events["in"].wait(20)

    async def look_up():
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo("localhost", 5432), threading.active_count()

    loop = running.worker.watchdog.loop
    addresses, _ = asyncio.run_coroutine_threadsafe(look_up(), loop).result(20)
    assert addresses
    shared.events["go"].set()
    assert running.final(job).state == State.SUCCEEDED


def test_errors_values_and_contexts_come_back_as_they_would(work, body):
    running = work()

    def fails():
        raise LookupError("here")

    def stops():
        raise StopIteration

    async def handler():
        errors = []
        for function in (fails, stops):
            try:
                await asyncio.to_thread(function)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        inner = await asyncio.to_thread(async_to_sync(in_executor), threading.get_ident)
        here = threading.get_ident()
        return [*errors, inner != here, connection.vendor]

    job = jobs.acall.enqueue(body(handler))
    assert running.final(job).result == [
        "LookupError: here",
        "RuntimeError: the call raised StopIteration",
        True,
        "postgresql",
    ]
