"""Workers that die, freeze, block their loop or lose their database; and who takes over."""

import contextlib
import signal
import time
from asyncio import to_thread
from urllib.parse import quote

import psycopg
import pytest
from django.db import connections

from jobqueue import conf
from jobqueue.models import Attempt, Job, JobEvent, Worker
from tests.children import wait_until
from tests.processes import tempers as tasks
from tests.processes.fleet import (
    SLACK_SECONDS,
    Fleet,
    make_effect_table,
    outcomes,
    rows_of_effects,
    states,
)
from tests.processes.proxy import Proxy
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

SHORT_LEASE = {"LEASE_SECONDS": 1.5, "CANCEL_SECONDS": 0.3}


@contextlib.asynccontextmanager
async def way_to(parameters, fleet):
    """A proxy through which the fleet's workers reach the database from now on."""
    async with Proxy(parameters["host"], int(parameters.get("port") or 5432)) as proxy:
        host, port = proxy.address
        login = f"{parameters['user']}:{quote(parameters.get('password') or '')}"
        database = parameters["dbname"]
        fleet.environment["DATABASE_URL"] = f"postgresql://{login}@{host}:{port}/{database}"
        yield proxy


async def in_thread(function, *args):
    """Use the ORM from a coroutine, and leave no connection behind."""

    def call():
        try:
            return function(*args)
        finally:
            connections.close_all()

    return await to_thread(call)


def freeze_the_holder(fleet, task, seconds):
    """Of two workers the one that runs the job is stopped until the other has been given it.
    Returns the job, the frozen worker and the other one."""
    started = [fleet.start(wait=False, **SHORT_LEASE) for _ in range(2)]
    for worker in started:
        worker.wait_for("worker_started")
    workers = {str(worker.row().pk): worker for worker in started}
    job = int(task.enqueue(seconds).id)
    wait_until(lambda: fleet.count("begin") == 1, every=0.005)
    frozen = workers.pop(str(Job.objects.get(pk=job).worker))
    frozen.send(signal.SIGSTOP)
    wait_until(lambda: Attempt.objects.filter(outcome="LOST").exists(), 40)
    return job, frozen, *workers.values()


@pytest.mark.spec("S109", "S7", "S101", "D112")
def test_what_a_killed_worker_held_runs_again_elsewhere_and_is_counted(fleet: Fleet):
    first = fleet.start(**SHORT_LEASE)
    job = tasks.nap.enqueue(600).id
    wait_until(lambda: fleet.count("begin") == 1)
    first.process.kill()
    second = fleet.start(**SHORT_LEASE)
    wait_until(lambda: fleet.count("begin") == 2, 40)
    row = Job.objects.get(pk=job)
    assert (row.state, row.attempts, row.failures) == ("RUNNING", 1, 1)
    (lost,) = Attempt.objects.filter(job=job)
    assert (lost.outcome, lost.recorded_by) == ("LOST", "leader")
    assert second.stop() == 0


@pytest.mark.spec("S53", "S92", "S103", "S104", "S99", "S201", "A1", "A22")
def test_a_worker_frozen_past_its_lease_writes_nothing_and_goes_on(fleet: Fleet):
    job, frozen, other = freeze_the_holder(fleet, tasks.nap, 1.0)
    wait_until(lambda: states() == {"SUCCEEDED": 1}, 40)
    frozen.send(signal.SIGCONT)
    frozen.wait_for("lease_lost")
    assert other.stop() == 0
    again = tasks.nap.enqueue(0).id  # which only the thawed one can do
    wait_until(lambda: Job.objects.get(pk=again).state == "SUCCEEDED")
    row = Job.objects.get(pk=job)
    assert (row.state, row.attempts, row.failures) == ("SUCCEEDED", 2, 1)
    lost, won = Attempt.objects.filter(job=job).order_by("number")
    assert (lost.outcome, won.outcome) == ("LOST", "SUCCEEDED")
    assert lost.late_outcome in ("SUCCEEDED", "INTERRUPTED")
    assert lost.worker != won.worker
    assert frozen.stop() == 6
    assert frozen.report["unrecorded"] == 1


@pytest.mark.spec("S92", "S103", "S212")
def test_an_atomic_handler_that_was_frozen_rolls_back_and_runs_once_in_effect(fleet: Fleet):
    make_effect_table()
    job, frozen, _ = freeze_the_holder(fleet, tasks.write_row_once, 1.0)
    wait_until(lambda: states() == {"SUCCEEDED": 1}, 40)
    frozen.send(signal.SIGCONT)
    wait_until(lambda: Attempt.objects.get(job=job, outcome="LOST").late_outcome)
    assert rows_of_effects() == {job: 1}
    assert outcomes() == {"LOST": 1, "SUCCEEDED": 1}
    tasks.nap.enqueue(0)
    wait_until(lambda: states() == {"SUCCEEDED": 2})
    assert frozen.stop() == 6


@pytest.mark.spec("S106", "S147")
def test_a_blocked_loop_is_logged_with_the_culprit_and_shown_at_its_job(fleet: Fleet):
    worker = fleet.start(LEASE_SECONDS=20, HEARTBEAT_SECONDS=1)
    job = tasks.block_loop.enqueue(3.5).id
    blocked = worker.wait_for("event_loop_blocked")
    assert blocked["job"] == int(job)
    assert "time.sleep(seconds)" in blocked["stack"]
    wait_until(lambda: states() == {"SUCCEEDED": 1})
    event = wait_until(lambda: JobEvent.objects.filter(kind="blocked_loop").first())
    assert event.job == int(job)
    assert "time.sleep(seconds)" in event.note
    assert event.actor.startswith("worker ")
    assert worker.events("event_loop_recovered")
    assert worker.stop() == 0
    assert outcomes() == {"SUCCEEDED": 1}


@pytest.mark.spec("S106", "S104", "S147")
def test_a_loop_that_is_blocked_beyond_the_trust_ends_the_process(fleet: Fleet):
    worker = fleet.start(**SHORT_LEASE)
    tasks.block_loop.enqueue(600)
    wait_until(lambda: fleet.count("begin"))
    start = time.monotonic()
    assert worker.ended(30) == 5
    assert time.monotonic() - start < 1.5 + SLACK_SECONDS
    assert "the event loop is blocked and job" in worker.text()
    assert "block_loop" in worker.text()


@pytest.mark.spec("S104", "S150")
def test_a_c_call_that_holds_the_interpreter_past_the_lease_ends_the_process_at_once(fleet: Fleet):
    """By then another worker may run the job: there is no time left to clean up in."""
    worker = fleet.start(LEASE_SECONDS=4.5, CANCEL_SECONDS=3)
    tasks.hold_then_clean_up.enqueue(5.5, 2)
    wait_until(lambda: fleet.count("begin"))
    assert worker.ended(40) == 5
    assert "outlives the trust in its lease" in worker.text()
    assert not fleet.count("cleaned")


@pytest.mark.spec("S147", "S146")
def test_a_signal_to_a_blocked_loop_ends_the_process_at_the_deadline(fleet: Fleet):
    worker = fleet.start(LEASE_SECONDS=60, DRAIN_SECONDS=0.5, CANCEL_SECONDS=0.5)
    tasks.block_loop.enqueue(600)
    wait_until(lambda: fleet.count("begin"))
    start = time.monotonic()
    assert worker.stop() == 5
    assert time.monotonic() - start < 0.5 + 0.5 + 2 + SLACK_SECONDS
    assert "deadline" in worker.text()
    assert "block_loop" in worker.text()


@pytest.mark.spec("S149", "S145", "S146", "S198", "A27", "A28")
@pytest.mark.parametrize("busy", [False, True])
async def test_a_dead_server_does_not_hold_up_the_shutdown(parameters, fleet: Fleet, busy):
    """All bytes are swallowed from the signal on; the claimer and the beat stand in their calls."""
    async with way_to(parameters, fleet) as proxy:
        worker = await to_thread(
            fleet.start, LEASE_SECONDS=6, DRAIN_SECONDS=1, CANCEL_SECONDS=0.5, POLL_SECONDS=0.05
        )
        if busy:
            await in_thread(tasks.nap.enqueue, 600)
            await until(lambda: fleet.count("begin"))
        proxy.swallow = True
        start = time.monotonic()
        worker.send(signal.SIGTERM)
        code = await to_thread(worker.ended, 30)
        assert time.monotonic() - start < 1 + 0.5 + 2 + SLACK_SECONDS
        assert code == (6 if busy else 0)
        assert worker.report["unrecorded"] == (1 if busy else 0)
        if busy:
            assert worker.events("jobs_unrecorded")


@pytest.mark.spec("S93", "S95", "S104", "S105")
async def test_a_worker_that_cannot_renew_stops_its_handlers_in_time_and_works_on(
    parameters, fleet: Fleet
):
    async with way_to(parameters, fleet) as proxy:
        worker = await to_thread(fleet.start, LEASE_SECONDS=4, CANCEL_SECONDS=1)
        await in_thread(tasks.tidy_up.enqueue, 0.1)
        await until(lambda: fleet.count("begin"))
        start = time.monotonic()
        proxy.swallow = True
        await to_thread(worker.wait_for, "lease_not_renewed")
        await until(lambda: fleet.count("tidied"))
        assert time.monotonic() - start < 4 + SLACK_SECONDS
        assert worker.process.poll() is None
        proxy.swallow = False
        await until(lambda: fleet.count("begin") == 2, 40)  # reclaimed, and run once more
        assert worker.process.poll() is None


@pytest.mark.spec("S118", "S123", "A9")
def test_a_locked_row_is_renewed_as_soon_as_it_can_be_and_holds_up_nobody(fleet: Fleet):
    """D118: the lock outlives the lease by far."""
    worker = fleet.start("--concurrency", "10", "--no-leader", LEASE_SECONDS=2, CANCEL_SECONDS=0.3)
    locked = tasks.wait_for_file.enqueue(str(fleet.folder / "go")).id
    for _ in range(9):
        tasks.nap.enqueue(3)
    wait_until(lambda: fleet.count("begin") == 10)
    with psycopg.connect(**conf.connection_parameters()) as session:
        session.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [locked])
        wait_until(lambda: states()["SUCCEEDED"] == 9, 40)
        lapsed = "SELECT lease_expires_at < clock_timestamp() FROM jobqueue_job WHERE id = %s"
        wait_until(lambda: session.execute(lapsed, [locked]).fetchone()[0])
    (fleet.folder / "go").touch()
    wait_until(lambda: states() == {"SUCCEEDED": 10})
    assert outcomes() == {"SUCCEEDED": 10}
    assert not worker.events("lease_not_renewed")
    assert not worker.events("lease_lost")
    assert worker.stop() == 0


@pytest.mark.spec("S109")
def test_a_deleted_job_costs_one_line(fleet: Fleet):
    worker = fleet.start()
    job = tasks.nap.enqueue(600).id
    wait_until(lambda: fleet.count("begin"))
    Job.objects.filter(pk=job).delete()
    worker.wait_for("lease_lost", job=int(job))
    tasks.nap.enqueue(0)
    wait_until(lambda: states() == {"SUCCEEDED": 1})
    assert worker.stop() == 6  # its outcome is recorded nowhere


@pytest.mark.spec("S152", "A9")
def test_a_worker_that_was_certified_dead_leaves(fleet: Fleet):
    worker = fleet.start()
    Worker.objects.filter(pk=worker.row().pk).update(died_at=worker.row().started_at)
    assert worker.ended(20) == 1
    assert "dead" in worker.report["reason"]


@pytest.mark.spec("S152", "S104")
def test_a_worker_that_was_certified_dead_stops_its_handlers_at_once(fleet: Fleet):
    """Its jobs are taken back whatever their leases say: none may run on beside the next run."""
    worker = fleet.start(DRAIN_SECONDS=60, LEASE_SECONDS=60, CANCEL_SECONDS=1)
    job = tasks.tidy_up.enqueue(0.1).id
    wait_until(lambda: fleet.count("begin"))
    Worker.objects.filter(pk=worker.row().pk).update(died_at=worker.row().started_at)
    assert worker.ended(30) == 1
    assert fleet.count("tidied")
    assert worker.events("lease_lost")[0]["job"] == int(job)


@pytest.mark.spec("S93")
def test_a_worker_whose_row_is_gone_registers_again(fleet: Fleet):
    worker = fleet.start()
    row = worker.row()
    row.delete()
    wait_until(lambda: Worker.objects.filter(pid=worker.pid).exists())
    again = worker.row()
    assert (again.name, again.started_at > row.started_at) == (row.name, True)
    assert worker.stop() == 0
