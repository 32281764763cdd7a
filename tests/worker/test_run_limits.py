"""When a drain is over: nothing in the table, nothing here, for a moment."""

import asyncio
import threading

import pytest
import pytest_asyncio

from jobqueue.store import idleness
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import CallTimeout
from jobqueue.worker import run_limits
from jobqueue.worker.run_limits import IdleWatch
from tests.children import wait_until
from tests.rows import add_job, add_running, add_worker, ago, ahead, insert
from tests.waiting import until
from tests.worker.parts import working


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(run_limits, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(run_limits, "SETTLE_SECONDS", 0.1)


@pytest_asyncio.fixture
async def watch(parameters, connection):
    """Watch the queues `default` and `mail`, for a worker that starts now."""
    sessions, tasks, worker = [], [], await add_worker(connection, started_at=ago(0))

    def watch(*, max_runtime=None, inflight=lambda: 0):
        sessions.append(Session(ConnectionParameters.fixed(parameters), "idle"))
        watch = IdleWatch(
            sessions[-1], ["default", "mail"], worker, max_runtime=max_runtime, inflight=inflight
        )
        tasks.append(asyncio.ensure_future(watch.wait()))
        tasks[-1].watch = watch
        return tasks[-1]

    yield watch
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for session in sessions:
        await session.close()


async def looked_at(task, times=10):
    """Let the watch look a few more times; true if it goes on."""
    count, watch = 0, task.watch
    real = watch._is_idle

    async def counted(end):
        nonlocal count
        answer = await real(end)
        count += 1
        return answer

    watch._is_idle = counted
    await until(lambda: count >= times or task.done())
    watch._is_idle = real
    return not task.done()


@pytest.mark.spec("S158", "S160")
async def test_empty_queues_end_the_run_with_0(connection, watch):
    await add_job(connection, state="SUCCEEDED", finished_at=ago(1))
    await add_job(connection, queue="other")
    verdict = await asyncio.wait_for(watch(), 15)
    assert (verdict.idle, verdict.code) == (True, 0)


WORK = [
    {"state": "READY"},
    {"state": "READY", "queue": "mail"},
    {"state": "SCHEDULED", "run_at": ahead(9999)},
    {"state": "SCHEDULED", "run_at": ahead(9999), "failures": 1, "attempts": 1},
]


@pytest.mark.spec("S158", "S163")
@pytest.mark.parametrize("work", WORK, ids=lambda work: f"{work['state']}-{len(work)}")
async def test_work_that_waits_keeps_the_run_alive(connection, watch, work):
    await add_job(connection, **work)
    task = watch()
    assert await looked_at(task)
    await connection.execute("UPDATE jobqueue_job SET state = 'SUCCEEDED', finished_at = now()")
    assert (await asyncio.wait_for(task, 15)).code == 0


@pytest.mark.spec("S158")
async def test_a_job_that_another_worker_runs_keeps_the_run_alive(connection, watch):
    await add_running(connection, lease=ahead(60))
    assert await looked_at(watch())


@pytest.mark.spec("S158")
async def test_what_is_held_here_keeps_the_run_alive(connection, watch):
    inflight = [1]
    task = watch(inflight=lambda: len(inflight))
    assert await looked_at(task)
    inflight.clear()
    assert (await asyncio.wait_for(task, 15)).idle


@pytest.mark.spec("S159")
async def test_work_that_appears_while_it_settles_starts_the_wait_anew(
    connection, watch, monkeypatch
):
    monkeypatch.setattr(run_limits, "SETTLE_SECONDS", 60)
    task = watch()
    assert await looked_at(task, 3)
    await add_job(connection)
    assert await looked_at(task, 3)
    monkeypatch.setattr(run_limits, "SETTLE_SECONDS", 0)
    assert await looked_at(task, 5)
    await connection.execute("UPDATE jobqueue_job SET state = 'SUCCEEDED', finished_at = now()")
    await asyncio.wait_for(task, 15)


@pytest.mark.spec("S159")
async def test_a_count_without_an_answer_is_never_empty(connection, watch, monkeypatch):
    task = watch()
    real = task.watch.session.call

    async def no_answer(*args):
        raise CallTimeout("no answer")

    monkeypatch.setattr(task.watch.session, "call", no_answer)
    assert await looked_at(task)
    monkeypatch.setattr(task.watch.session, "call", real)
    assert (await asyncio.wait_for(task, 15)).code == 0


@pytest.mark.spec("S160", "S161", "S165")
async def test_a_job_that_died_since_the_start_makes_it_3_whoever_ran_it(connection, watch):
    await add_job(connection, state="DEAD", finished_at=ago(60))  # before the start
    blocking = await add_job(connection)
    task = watch()
    assert await looked_at(task)
    await connection.execute(
        "UPDATE jobqueue_job SET state = 'DEAD', finished_at = clock_timestamp() WHERE id = %s",
        [blocking],
    )
    verdict = await asyncio.wait_for(task, 15)
    assert (verdict.died, verdict.code) == (1, 3)


@pytest.mark.spec("S160", "S161")
async def test_a_job_that_died_before_the_first_look_counts(connection, watch):
    await add_job(connection, state="DEAD", finished_at=ago(0))
    verdict = await asyncio.wait_for(watch(), 15)
    assert (verdict.died, verdict.code) == (1, 3)


@pytest.mark.spec("S161", "A16")
async def test_cancelled_jobs_and_retries_are_no_failures(connection, watch):
    task = watch()
    await until(lambda: task.watch._latest)
    await add_job(connection, state="CANCELLED", finished_at=ago(0))
    await add_job(connection, state="SUCCEEDED", finished_at=ago(0), failures=2, attempts=3)
    assert (await asyncio.wait_for(task, 15)).code == 0


@pytest.mark.spec("S160")
async def test_the_limit_ends_the_run_with_4(connection, watch):
    await add_job(connection)
    verdict = await asyncio.wait_for(watch(max_runtime=0.2), 15)
    assert (verdict.idle, verdict.code) == (False, 4)


@pytest.mark.spec("S163")
async def test_scheduled_jobs_due_after_the_limit_are_not_waited_for(connection, watch):
    await add_job(connection, state="SCHEDULED", run_at=ahead(9999))
    assert (await asyncio.wait_for(watch(max_runtime=60), 15)).code == 0


@pytest.mark.spec("S163")
async def test_parked_jobs_and_paused_queues_are_reported_and_not_waited_for(connection, watch):
    await add_job(connection, state="SCHEDULED", parked_at=ago(1), run_at=ahead(60))
    await add_job(connection, queue="mail")
    await insert(connection, "jobqueue_queue", "name", {"name": "mail", "paused_at": ago(1)})
    verdict = await asyncio.wait_for(watch(), 15)
    assert (verdict.code, verdict.parked, verdict.paused) == (0, 1, ("mail",))


@pytest.mark.spec("S162")
async def test_a_job_that_dies_during_the_shutdown_changes_the_verdict(connection, watch):
    task = watch()
    verdict = await asyncio.wait_for(task, 15)
    assert verdict.code == 0
    await connection.execute(
        "INSERT INTO jobqueue_job (task, state, finished_at) "
        "VALUES ('x.y', 'DEAD', clock_timestamp())"
    )
    assert (await task.watch.confirm(verdict)).code == 3


@pytest.mark.spec("S164", "S162")
@pytest.mark.django_db(transaction=True)
def test_a_watch_that_waits_long_for_its_answer_looks_well_and_its_end_is_no_fault(monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    real = idleness.left

    async def slow(*args):
        asked.set()
        while not answer.is_set():
            await asyncio.sleep(0.01)
        return await real(*args)

    monkeypatch.setattr(idleness, "left", slow)
    with working(until_idle=True) as worker:
        wait_until(asked.is_set)
        beat = worker.components.heartbeat.good_at
        wait_until(lambda: worker.components.heartbeat.good_at > beat)
        assert worker.probe.unready() == ""
        assert worker.services.get("limits") is not None
        assert not worker.shutdown.requested.is_set()
        answer.set()
        wait_until(worker.shutdown.requested.is_set)
    assert (worker.shutdown.reason, worker.code) == ("idle", 0)
