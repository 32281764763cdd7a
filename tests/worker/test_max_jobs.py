"""`--max-jobs` is a budget of attempts that begin in one process, whichever round claims them."""

from dataclasses import replace

import pytest

from jobqueue import enqueue_many
from jobqueue.models import Attempt, Job
from jobqueue.worker.claiming.attempt_budget import AttemptBudget
from jobqueue.worker.inflight import Fate, InFlightJobs
from jobqueue.worker.process.recycle import Recycling
from tests.children import wait_until
from tests.rows import add_job
from tests.waiting import until
from tests.worker import jobs
from tests.worker.intake import CALM, make, overcommitment, proxy
from tests.worker.parts import SHORT, claim, working

__all__ = ["make", "proxy"]

SLOTS = 6


@pytest.fixture(autouse=True)
def two(monkeypatch):
    """Both claim connections work, with few slots too."""
    monkeypatch.setattr("jobqueue.worker.claiming.claimer.SECOND_CLAIM_SLOTS", 2)


def ends(worker):
    """Wait until it has left by itself."""
    wait_until(lambda: worker.shutdown.phase == "STOPPED")


@pytest.mark.spec("S196")
async def test_no_round_of_either_connection_claims_beyond_the_budget(make, connection):
    for _ in range(200):
        await add_job(connection)
    async with overcommitment(connection, SLOTS) as most:
        intake = make(replace(CALM, concurrency=SLOTS), ("default",), max_attempts=31)
        intake.run()

        def begun():
            """Each ends at once, so that the claims write successes along."""
            for inflight in intake.registry:
                if not inflight.ended:
                    intake.put(inflight)
            return len(intake.handlers.started) >= 31

        await until(begun)
        await until(lambda: begun() and intake.spent)
        assert await most() is None
    assert intake.spent[0] == 0  # once nothing is held any more
    assert len(intake.handlers.started) == 31
    assert intake.claimer.budget.asked == intake.claimer.intake.slots_requested == 0


async def test_the_worker_awaits_the_last_ones(make, connection):
    for _ in range(5):
        await add_job(connection)
    intake = make(replace(CALM, concurrency=SLOTS), ("default",), max_attempts=2)
    intake.run()
    await until(lambda: len(intake.handlers.started) == 2)
    first, second = intake.handlers.started
    intake.put(first)
    await until(lambda: first.fate is Fate.COMPLETED)
    await until(lambda: not intake.registry.freed.is_set())  # it has looked at the free slot
    assert not intake.spent
    intake.put(second)
    await until(lambda: intake.spent)
    assert len(intake.handlers.started) == 2


def test_what_is_returned_unstarted_is_given_back():
    registry = InFlightJobs(10)
    budget = AttemptBudget(3, registry)
    inflight = [registry.add(claim(), 0.0) for _ in range(3)]
    assert (budget.left, budget.is_spent) == (0, False)
    for each in inflight:
        registry.end(each)
    registry.record_fate(inflight[0], Fate.COMPLETED)
    registry.record_fate(inflight[1], Fate.RETURNED)
    registry.record_fate(inflight[2], Fate.UNRECORDED)
    assert (budget.left, budget.is_spent) == (1, False)
    budget.asked = 1
    assert budget.left == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("slots", [1, 4, 40])
def test_so_many_attempts_begin_and_the_worker_leaves_with_0(slots):
    enqueue_many([(jobs.add, (n, 1)) for n in range(300)])
    options = {"recycling": Recycling(max_jobs=20), "lead": False}
    with working(replace(SHORT, concurrency=slots), **options) as worker:
        ends(worker)
    assert worker.code == 0
    assert worker.shutdown.reason == "20 jobs done, --max-jobs is 20"
    assert Attempt.objects.count() == 20
    assert Job.objects.filter(state="READY").count() == 280


@pytest.mark.django_db(transaction=True)
def test_jobs_that_no_code_here_knows_cost_nothing():
    for _ in range(5):
        Job.objects.create(task="tests.worker.jobs.of_the_next_release", priority=50)
    enqueue_many([(jobs.add, (n, 1)) for n in range(10)])
    with working(SHORT, recycling=Recycling(max_jobs=3), lead=False) as worker:
        ends(worker)
    assert Attempt.objects.filter(outcome="SUCCEEDED").count() == 3
    assert worker.registry.counts[Fate.RETURNED] == 5


@pytest.mark.django_db(transaction=True)
def test_the_last_jobs_have_all_their_time(shared, body):
    """No drain cuts them short: the limit is on what begins."""
    settings = replace(SHORT, drain_seconds=0.0, cancel_seconds=0.0, concurrency=4)
    name = body(lambda: shared.events["last"].wait(60))
    job = jobs.call.enqueue(name)
    with working(settings, recycling=Recycling(max_jobs=1), lead=False) as worker:
        wait_until(lambda: worker.components.heartbeat.idle == "MAX_JOBS")
        assert worker.shutdown.phase == "RUNNING"
        shared.events["last"].set()
        ends(worker)
    assert Job.objects.get(pk=job.id).state == "SUCCEEDED"
    assert worker.code == 0
