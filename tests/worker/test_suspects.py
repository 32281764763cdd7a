"""A worker runs one suspect at a time, beside other jobs."""

import threading

import pytest

from jobqueue.models import Job
from jobqueue.states import State
from tests.worker import jobs
from tests.worker.running import sql


def make_suspect(*results):
    sql(
        "UPDATE jobqueue_job SET suspect = true, attempts = 2, failures = 2 WHERE id = ANY(%s)",
        [int(result.id) for result in results],
    )


def test_one_suspect_at_a_time_runs_beside_other_jobs(work, body, shared):
    """Enqueued while a queue is paused, so that no worker takes them before they are suspects."""
    lock, running_now, most = threading.Lock(), [0], [0]
    go = shared.events["go"]

    def suspicious():
        with lock:
            running_now[0] += 1
            most[0] = max(most[0], running_now[0])
        go.wait(20)
        with lock:
            running_now[0] -= 1

    name, plain = body(suspicious), body(lambda: shared.events["plain"].set())
    sql("INSERT INTO jobqueue_queue (name, paused_at) VALUES ('default', now())")
    suspects = [jobs.call.enqueue(name) for _ in range(5)]
    make_suspect(*suspects)
    sql("DELETE FROM jobqueue_queue")
    running = work(concurrency=4, poll_seconds=0.2)
    ids = [int(result.id) for result in suspects]
    held = Job.objects.filter(pk__in=ids, state=State.RUNNING)
    running.wait(lambda: running_now[0] == 1)
    assert running.final(jobs.call.enqueue(plain)).state == State.SUCCEEDED
    assert shared.events["plain"].is_set()
    assert held.count() == 1
    go.set()
    for suspect in suspects:
        row = running.final(suspect)
        assert (row.state, row.attempts, row.suspect) == (State.SUCCEEDED, 3, False)
    assert most == [1]


def test_an_idle_worker_hears_of_a_suspect_and_takes_it_after_a_second_at_most(work, body):
    running = work(poll_seconds=300.0, heartbeat_seconds=60.0, lease_seconds=600.0)
    assert running.final(jobs.add.enqueue(1, 2)).result == 3  # so that it has just looked
    sql("INSERT INTO jobqueue_queue (name, paused_at) VALUES ('default', now())")
    suspect = jobs.add.enqueue(3, 4)
    make_suspect(suspect)
    sql("DELETE FROM jobqueue_queue")
    jobs.add.enqueue(5, 6)  # any wake will do
    assert running.final(suspect).result == 7


@pytest.mark.parametrize("refused", [True, False])
def test_a_suspect_that_the_database_refuses_to_claim_holds_up_nobody(work, refused):
    sql("INSERT INTO jobqueue_queue (name, paused_at) VALUES ('default', now())")
    bad, good = jobs.add.enqueue(1, 1), jobs.add.enqueue(2, 2)
    make_suspect(bad, good)
    if refused:
        sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'not this one'; END $$"
        )
        sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON jobqueue_job FOR EACH ROW"
            f" WHEN (NEW.id = {int(bad.id)} AND NEW.state = 'RUNNING') EXECUTE FUNCTION refuse()"
        )
    try:
        sql("DELETE FROM jobqueue_queue")
        running = work(poll_seconds=0.2)
        assert running.final(good).result == 4
        if refused:
            assert Job.objects.get(pk=int(bad.id)).state == State.READY
            assert running.final(jobs.add.enqueue(3, 3)).result == 6
        else:
            assert running.final(bad).result == 2
    finally:
        sql("DROP FUNCTION IF EXISTS refuse CASCADE")
