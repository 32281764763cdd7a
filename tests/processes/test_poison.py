"""A job that kills its process, and jobs that are lost with a machine."""

import signal

import pytest

from jobqueue.models import Attempt, Job
from jobqueue.states import FINAL, Outcome, State
from tests.children import wait_until
from tests.processes import tempers as tasks
from tests.processes.fleet import Fleet

pytestmark = pytest.mark.timeout(180)


def all_final() -> bool:
    return not Job.objects.exclude(state__in=FINAL).exists()


def test_a_job_that_kills_its_process_ends_dead_and_sound_ones_are_charged_twice_at_most(
    fleet: Fleet,
) -> None:
    sound = [int(tasks.doze.enqueue(1.0).id) for _ in range(5)]
    poison = int(tasks.poison.enqueue(0.3).id)
    sound += [int(tasks.doze.enqueue(1.0).id) for _ in range(4)]
    fleet.start("--processes", "2", CONCURRENCY=5)
    wait_until(all_final, 120)
    row = Job.objects.get(pk=poison)
    assert (row.state, row.reason, row.attempts) == (State.DEAD, "worker lost", 5)
    others = Job.objects.filter(pk__in=sound)
    assert set(others.values_list("state", flat=True)) == {State.SUCCEEDED}
    assert max(others.values_list("failures", flat=True)) <= 2
    assert not Job.objects.filter(suspect=True).exists()
    # From its third attempt on it ran beside no other suspect.
    for lost in Attempt.objects.filter(job=poison, number__gt=2):
        beside = Attempt.objects.filter(worker=lost.worker, outcome=Outcome.LOST, number__gt=2)
        assert list(beside.values_list("job", flat=True)) == [poison]


def test_fifty_harmless_jobs_of_a_killed_worker_are_done_by_the_next_at_once(fleet: Fleet) -> None:
    worker = fleet.start(CONCURRENCY=50)
    for _ in range(50):
        tasks.nap.enqueue(30)
    wait_until(lambda: Job.objects.filter(state=State.RUNNING).count() == 50, 30)
    worker.send(signal.SIGKILL)
    worker.ended(10)
    Job.objects.update(args=[0.1])
    fleet.start(CONCURRENCY=50)
    wait_until(all_final, 60)
    states = set(Job.objects.values_list("state", "suspect", "failures"))
    assert states == {(State.SUCCEEDED, False, 1)}


def test_harmless_jobs_that_were_lost_twice_follow_each_other_without_a_pause(
    fleet: Fleet,
) -> None:
    """The price of the doubt: one at a time in each process, but the next as soon as one ends."""
    for _ in range(20):
        tasks.nap.enqueue(30)
    for lost in range(2):
        worker = fleet.start(CONCURRENCY=20)
        running = Job.objects.filter(state=State.RUNNING, failures=lost)
        wait_until(lambda running=running: running.count() == 20, 30)
        worker.send(signal.SIGKILL)
        worker.ended(10)
    Job.objects.update(args=[0.05])
    fleet.start(CONCURRENCY=20, POLL_SECONDS=300)
    wait_until(all_final, 60)  # a poll for each would take longer
    states = set(Job.objects.values_list("state", "suspect", "attempts"))
    assert states == {(State.SUCCEEDED, False, 3)}
