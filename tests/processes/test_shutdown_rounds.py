"""Many drains at random moments: whatever the moment, nothing is lost and nobody is charged."""

import random
import signal
from collections import Counter, defaultdict

import pytest

from jobqueue.models import Attempt, Job
from tests.children import wait_until
from tests.processes import tempers as tasks
from tests.processes.fleet import Fleet, adds_up, states

pytestmark = [pytest.mark.django_db(transaction=True)]

ROUNDS, LONG_ROUNDS = 4, 200
JOBS = 60


def fill(rng):
    for _ in range(JOBS):
        task = rng.choice([tasks.nap, tasks.nap, tasks.doze, tasks.doze, tasks.sleep_in_database])
        task.enqueue(rng.choice([0.0, 0.01, 0.05, 0.2, rng.uniform(0, 1.5)]))


def check_round(worker, code):
    found = states()
    assert code == 0, worker.text()[-4000:]
    report = worker.report
    assert adds_up(report)
    assert report["unrecorded"] == 0
    assert found["RUNNING"] == 0
    assert found["DEAD"] == found["CANCELLED"] == found["SCHEDULED"] == 0
    assert not Job.objects.exclude(failures=0).exists()


def check_effects(fleet):
    """Every begin is an attempt, every end a success, and no attempt ran twice."""
    done = defaultdict(Counter)
    for job, attempt, word in fleet.effects():
        done[job, attempt][word] += 1
    ended = set()
    for row in Attempt.objects.all():
        words = done.pop((row.job_id, row.number))
        assert words["begin"] == 1
        assert row.outcome in ("SUCCEEDED", "INTERRUPTED")
        if row.outcome == "SUCCEEDED":
            assert words["end"] == 1
            ended.add(row.job_id)
        else:  # interrupted after its last line at worst
            assert words["end"] <= 1
    assert not done
    assert Job.objects.filter(state="SUCCEEDED").count() == len(ended)
    for job in Job.objects.all():
        assert job.attempts == Attempt.objects.filter(job=job.pk).count()


def drains(fleet, rounds, seed):
    rng = random.Random(seed)
    total = 0
    for _ in range(rounds):
        fill(rng)
        total += JOBS
        graces = {"DRAIN_SECONDS": rng.choice([0, 0.05, 0.3, 1]), "CANCEL_SECONDS": 1.5}
        worker = fleet.start("--concurrency", "10", wait=False, LEASE_SECONDS=5, **graces)
        begun = fleet.count("begin")
        wanted = begun + rng.randint(0, 30)
        wait_until(lambda wanted=wanted: fleet.count("begin") >= wanted, 40, every=0.001)
        worker.wait_for("worker_started")
        worker.send(rng.choice([signal.SIGTERM, signal.SIGINT]))
        if rng.random() < 0.3:
            worker.send(signal.SIGTERM)
        check_round(worker, worker.ended(40))
        assert states().total() == total
    check_effects(fleet)
    return total


@pytest.mark.timeout(300)
@pytest.mark.spec("S50", "S51", "S102", "S137", "S155", "S213", "S216", "D7")
def test_drains_at_random_moments_lose_nothing_and_charge_nobody(fleet: Fleet):
    drains(fleet, ROUNDS, seed=random.randrange(10**6))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.spec("S50", "S102", "S216")
def test_two_hundred_drains_lose_nothing(fleet: Fleet):
    total = drains(fleet, LONG_ROUNDS, seed=20261129)
    found = Counter(Attempt.objects.values_list("outcome", flat=True))
    print(f"{LONG_ROUNDS} drains, {total} jobs: {dict(states())}, attempts {dict(found)}")
