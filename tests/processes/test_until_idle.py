"""Runs that end by themselves, and poison, with real workers."""

import signal
from datetime import timedelta

import pytest
from django.utils import timezone

from jobqueue import enqueue_many
from jobqueue.models import Attempt, Job, LeaderLease, Queue, Worker
from tests.children import wait_until
from tests.processes import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


def drained(fleet, *options):
    """Run a worker until it ends by itself; its exit code."""
    return fleet.start("--until-idle", *options, wait=False).ended(60)


def running(job):
    return Job.objects.filter(pk=job.id, state="RUNNING").exists()


@pytest.mark.spec("S158", "S160", "S163")
def test_a_drain_ends_with_0_once_even_the_retries_have_run(fleet):
    enqueue_many([(tasks.add, (n, 1)) for n in range(50)])
    retried = tasks.fail_once.enqueue()
    later = tasks.add.using(run_after=timezone.now() + timedelta(seconds=1)).enqueue(1, 2)
    assert drained(fleet) == 0
    assert set(Job.objects.values_list("state", flat=True)) == {"SUCCEEDED"}
    assert Job.objects.get(pk=retried.id).attempts == 2
    assert Job.objects.get(pk=later.id).result == 3


@pytest.mark.spec("S160", "S161")
def test_a_drain_in_which_a_job_died_ends_with_3(fleet):
    tasks.die.enqueue()
    tasks.add.enqueue(1, 1)
    assert drained(fleet) == 3
    assert sorted(Job.objects.values_list("state", flat=True)) == ["DEAD", "SUCCEEDED"]


@pytest.mark.spec("S160", "S162")
def test_a_drain_that_reaches_its_longest_run_ends_with_4_through_the_ordinary_shutdown(fleet):
    job = tasks.sleep.enqueue(600)
    worker = fleet.start("--until-idle", "--max-runtime", "1", DRAIN_SECONDS=60)
    wait_until(lambda: running(job))
    wait_until(lambda: Worker.objects.filter(phase="DRAINING").exists())
    # Only escalates: the handler is cancelled now, the verdict stays.
    assert worker.stop() == 4
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.failures, row.interruptions) == ("READY", 0, 1)


@pytest.mark.spec("S163", "A30")
def test_unknown_tasks_and_paused_queues_do_not_keep_a_drain_alive(fleet):
    Job.objects.create(task="tests.processes.tasks.of_the_next_release")
    Queue.objects.create(name="mail", paused_at=timezone.now())
    tasks.add.using(queue_name="mail").enqueue(1, 1)
    assert drained(fleet) == 0
    assert Job.objects.get(queue="mail").state == "READY"
    assert Job.objects.get(queue="default").reason == "unknown task"


@pytest.mark.spec("S160", "S197e")
def test_several_processes_drain_and_the_verdict_is_the_worst(fleet):
    enqueue_many([(tasks.add, (n, 1)) for n in range(200)])
    tasks.die.enqueue()
    assert drained(fleet, "--processes", "2") == 3
    assert Job.objects.filter(state="SUCCEEDED").count() == 200


@pytest.mark.spec("S160", "S197e", "D18")
def test_a_job_that_kills_its_worker_does_not_end_a_drain(fleet):
    poison = tasks.poison.using(max_attempts=2).enqueue()
    enqueue_many([(tasks.add, (n, 1)) for n in range(50)])
    assert drained(fleet, "--processes", "2") == 3
    assert Job.objects.get(pk=poison.id).state == "DEAD"
    assert Job.objects.filter(state="SUCCEEDED").count() == 50


@pytest.mark.spec("S109", "S183", "S196", "D18")
def test_a_job_that_kills_its_worker_ends_dead_and_its_neighbours_succeed(fleet):
    supervisor = fleet.start("--processes", "2")
    poison = tasks.poison.using(max_attempts=2).enqueue()
    enqueue_many([(tasks.add, (n, 1)) for n in range(100)])
    wait_until(lambda: Job.objects.filter(pk=poison.id, state="DEAD").exists(), 60)
    wait_until(lambda: Job.objects.filter(state="SUCCEEDED").count() == 100, 60)
    row = Job.objects.get(pk=poison.id)
    assert (row.attempts, row.failures) == (2, 2)
    assert row.reason.startswith("worker lost")  # it may name neighbours that were lost with it
    outcomes = Attempt.objects.filter(job_id=poison.id).values_list("outcome", "recorded_by")
    assert set(outcomes) == {("LOST", "leader")}
    wait_until(lambda: Worker.objects.filter(died_at=None).count() == 2, 60)
    assert supervisor.stop() == 0


@pytest.mark.spec("S196")
def test_a_worker_that_has_done_its_jobs_is_replaced_without_a_loss(fleet):
    supervisor = fleet.start("--processes", "2", "--max-jobs", "1")
    for expected in (3, 6):
        known = Worker.objects.count()
        enqueue_many([(tasks.add, (n, 1)) for n in range(3)])
        wait_until(lambda n=expected: Job.objects.filter(state="SUCCEEDED").count() == n)
        wait_until(lambda n=known: Worker.objects.count() > n)
    assert supervisor.stop() == 0
    assert not supervisor.events("child_given_up")
    assert not supervisor.events("worker_died")
    assert any("--max-jobs is 1" in e["reason"] for e in supervisor.events("worker_stopped"))


@pytest.mark.spec("S160", "S196")
def test_a_job_that_died_in_a_worker_that_was_replaced_is_not_forgotten(fleet):
    """The one that drains the queue started after it."""
    tasks.die.using(priority=50).enqueue()
    enqueue_many([(tasks.add, (n, 1)) for n in range(10)])
    assert drained(fleet, "--processes", "2", "--max-jobs", "4") == 3
    assert Job.objects.filter(state="SUCCEEDED").count() == 10


def leader():
    now = timezone.now()
    holder = LeaderLease.objects.filter(expires_at__gt=now).values_list("holder", flat=True).first()
    return Worker.objects.filter(pk=holder).first() if holder else None


def leader_other_than(old):
    found = leader()
    return found if found is not None and found.pk != old.pk else None


@pytest.mark.spec("S174", "S175", "S176")
def test_a_stopping_worker_gives_the_role_away_before_it_drains(fleet):
    first = fleet.start(DRAIN_SECONDS=60)
    old = wait_until(leader)
    job = tasks.sleep.enqueue(600)
    wait_until(lambda: running(job))
    second = fleet.start()
    first.send(signal.SIGTERM)
    wait_until(lambda: leader_other_than(old))
    assert first.process.poll() is None  # it still drains
    assert Job.objects.get(pk=job.id).worker == old.pk
    assert first.stop() == 0  # the second signal
    wait_until(lambda: running(job))
    assert second.stop() == 0
    assert Job.objects.get(pk=job.id).failures == 0


@pytest.mark.spec("S109", "S183")
def test_a_killed_leader_is_followed_and_its_job_run_by_a_neighbour(fleet):
    first = fleet.start(LEASE_SECONDS=120, LEADER_LEASE_SECONDS=120)
    old = wait_until(leader)
    job = tasks.sleep.enqueue(600)
    wait_until(lambda: running(job))
    second = fleet.start(LEASE_SECONDS=120, LEADER_LEASE_SECONDS=120)
    first.process.kill()
    first.process.wait()
    held_until = Job.objects.get(pk=job.id).lease_expires_at
    wait_until(lambda: leader_other_than(old), 40)
    lost = wait_until(lambda: Attempt.objects.filter(job_id=job.id, outcome="LOST").first(), 40)
    assert Worker.objects.get(pk=old.pk).died_at < lost.finished_at < held_until
    wait_until(lambda: running(job), 40)
    assert second.stop() == 0
