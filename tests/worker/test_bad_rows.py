"""One bad row is set aside and named; the others go on (guarantee 10)."""

import asyncio
import contextlib

import pytest
from django.db import connection as django_connection

from jobqueue.conf import Settings
from jobqueue.models import Job
from jobqueue.states import Reason, State
from tests.events import captured
from tests.rows import add_job, one
from tests.waiting import until
from tests.worker import jobs
from tests.worker.intake import make, proxy

__all__ = ["make", "proxy"]

REFUSED = """
ALTER TABLE jobqueue_job ADD CONSTRAINT bad CHECK (id <> {} OR state <> 'RUNNING') NOT VALID
"""
# What a trigger of the project's may do: refuse one row's renewal.
NO_RENEWAL = """
CREATE FUNCTION refuse_renewal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = {} AND NEW.state = 'RUNNING' AND OLD.state = 'RUNNING'
       AND NEW.lease_expires_at > OLD.lease_expires_at THEN
        RAISE 'no renewal of this one';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON jobqueue_job
FOR EACH ROW EXECUTE FUNCTION refuse_renewal();
"""
LONG_NUMBER = "9" * 5_000


@contextlib.asynccontextmanager
async def refusing(connection, job):
    await connection.execute(REFUSED.format(job))
    try:
        yield
    finally:
        await connection.execute("ALTER TABLE jobqueue_job DROP CONSTRAINT bad")


@pytest.mark.parametrize("queues", [["default"], ["default", "mail", "other"]])
async def test_a_ready_row_that_cannot_be_claimed_stops_no_other(make, connection, queues):
    bad = await add_job(connection, priority=50)
    good = [await add_job(connection) for _ in range(6)]
    async with refusing(connection, bad):
        with captured() as events:
            intake = make(Settings(poll_seconds=0.2, concurrency=10), queues=queues)
            intake.run()
            await until(lambda: len(intake.started()) == len(good))
            (named,) = [event for event in events if event["event"] == "row_set_aside"]
        assert (named["step"], named["job"]) == ("claim", bad)
        late = await add_job(connection)
        await until(lambda: late in intake.started())
        assert not intake.tasks[0].done()
    assert await one(connection, "SELECT state FROM jobqueue_job WHERE id = %s", bad) == "READY"


async def test_a_row_that_was_set_aside_is_claimed_once_nothing_is_in_the_way(
    make, connection, monkeypatch
):
    monkeypatch.setattr("jobqueue.worker.row_batches.ASIDE_SECONDS", 0.3)
    bad = await add_job(connection)
    intake = make(Settings(poll_seconds=0.2, concurrency=10))
    async with refusing(connection, bad):
        with captured() as events:
            intake.run()
            await until(lambda: [e for e in events if e["event"] == "row_set_aside"])
    await until(lambda: len(intake.started()) == 1)


def test_a_job_whose_arguments_python_cannot_read_ends_alone(work):
    good = [Job(task="tests.worker.jobs.once", args=["fine"]) for _ in range(3)]
    bad = Job(task="tests.worker.jobs.once", args=[1])
    Job.objects.bulk_create([bad, *good])
    Job.objects.filter(pk=bad.pk).update(args=[1], max_attempts=1)
    with django_connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobqueue_job SET args = %s::jsonb WHERE id = %s", [f"[{LONG_NUMBER}]", bad.pk]
        )
    running = work(concurrency=4)
    state, reason, error = running.wait(lambda: ended(bad.pk))
    assert (state, reason) == (State.DEAD, Reason.INVALID_ARGUMENTS)
    assert "cannot be read" in error
    for job in good:
        assert running.wait(lambda job=job: ended(job.pk))
    assert not Job.objects.filter(state=State.RUNNING).exists()


@pytest.mark.parametrize(("column", "value"), [("kwargs", "[]"), ("args", "{}")])
def test_arguments_of_another_kind_are_invalid_and_not_tried_again(work, column, value):
    bad = Job.objects.create(task=jobs.call.module_path)
    with django_connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE jobqueue_job SET {column} = %s::jsonb WHERE id = %s", [value, bad.pk]
        )
    running = work()
    state, reason, error = running.wait(lambda: ended(bad.pk))
    assert (state, reason) == (State.DEAD, Reason.INVALID_ARGUMENTS)
    assert "must be a JSON array" in error


def test_a_row_whose_renewal_is_refused_ends_no_other(work, body, shared):
    stop = shared.events["stop"]

    async def handler():
        while not stop.is_set():
            await asyncio.sleep(0.01)

    name = body(handler)
    held = [jobs.acall.enqueue(name) for _ in range(3)]
    running = work(
        concurrency=3,
        lease_seconds=3.0,
        heartbeat_seconds=0.3,
        cancel_seconds=0.5,
        drain_seconds=1.0,
    )
    running.wait(lambda: Job.objects.filter(state=State.RUNNING).count() == 3)
    bad = held[0].id
    with django_connection.cursor() as cursor:
        cursor.execute(NO_RENEWAL.format(bad))
    try:
        running.wait(lambda: running.inflight(held[0]) is None or running.inflight(held[0]).ended)
        stop.set()
        for job in held[1:]:
            row = running.final(job)
            assert (row.state, row.attempts) == (State.SUCCEEDED, 1)
    finally:
        with django_connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse ON jobqueue_job; DROP FUNCTION refuse_renewal()")


def ended(pk):
    """The final state, without reading the arguments, which cannot be read."""
    rows = Job.objects.filter(pk=pk, finished_at__isnull=False)
    return rows.values_list("state", "reason", "last_error").first()
