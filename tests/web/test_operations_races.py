"""Operators and workers at the same rows at the same time."""

import asyncio
import random
import threading
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest
from django.db import connections
from django.db.models import Count
from django.utils import timezone

from jobqueue import conf, operations
from jobqueue.models import Job
from jobqueue.states import Outcome, State
from jobqueue.store import claims, finish
from tests.web import rows

ROUNDS, JOBS = 20, 200

pytestmark = [
    pytest.mark.spec("S2", "S115"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
]


def ready_jobs() -> list[int]:
    now = timezone.now()
    made = Job.objects.bulk_create(
        Job(task=rows.TASK, state=State.READY, max_attempts=3, run_at=now, enqueued_at=now)
        for _ in range(JOBS)
    )
    return [job.pk for job in made]


async def work(stop: threading.Event, started: dict[int, int]) -> None:
    """Claim and finish as a worker does, with every outcome; count the starts of each job."""
    dice, worker = random.Random(), uuid4()
    async with await psycopg.AsyncConnection.connect(
        autocommit=True, **conf.connection_parameters()
    ) as connection:
        while not stop.is_set():
            tokens = [uuid4() for _ in range(10)]
            taken = await claims.claim(connection, "default", worker, tokens, 30)
            for claim in taken:
                started[claim.id] = started.get(claim.id, 0) + 1
            endings = [
                finish.Ending(
                    id=claim.id,
                    token=claim.token,
                    outcome=dice.choice([Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SNOOZED, None]),
                )
                for claim in taken
            ]
            while endings:
                answers = await finish.finish(connection, worker, endings)
                busy = {answer.token for answer in answers if answer.busy}
                assert not [answer for answer in answers if answer.refused]
                endings = [ending for ending in endings if ending.token in busy]
            await asyncio.sleep(0 if taken else 0.005)


def test_bulk_acts_in_any_order_alongside_workers_never_fail_and_leave_whole_rows() -> None:
    ids = ready_jobs()
    errors: list[BaseException] = []
    stop, started = threading.Event(), [{}, {}]  # type: ignore[var-annotated]
    accepted: list[int] = []

    def operate(act: Callable[..., operations.Result]) -> None:
        dice = random.Random()
        for _ in range(ROUNDS):
            chosen = dice.sample(ids, 60)
            result = act(sorted(chosen, reverse=True), by="ann")
            assert result.changed + result.untouched == 60
            accepted.append(result.changed)

    def guarded(function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    acts = [
        operations.cancel,
        operations.retry,
        operations.retry,
        lambda jobs, by: operations.reprioritise(jobs, random.randint(-5, 5), by=by),
    ]
    operators = [threading.Thread(target=guarded, args=(operate, act)) for act in acts]
    workers = [
        threading.Thread(target=guarded, args=(lambda n=n: asyncio.run(work(stop, started[n])),))
        for n in range(2)
    ]
    for thread in [*workers, *operators]:
        thread.start()
    for thread in operators:
        thread.join(60)
    stop.set()
    for thread in workers:
        thread.join(60)
    assert not errors
    assert sum(accepted) > JOBS
    assert not Job.objects.filter(state=State.RUNNING).exists()
    for job in Job.objects.annotate(history=Count("attempt_set")):
        assert job.history == job.attempts <= sum(each.get(job.pk, 0) for each in started)


def test_what_was_cancelled_while_it_waited_never_starts() -> None:
    ids = ready_jobs()
    stop, started = threading.Event(), {}  # type: ignore[var-annotated]
    thread = threading.Thread(target=lambda: asyncio.run(work(stop, started)))
    thread.start()
    confirmed: list[int] = []
    try:
        for pk in reversed(ids):
            result = operations.cancel(pk)
            if result.changed and not result.asked:
                confirmed.append(pk)
    finally:
        stop.set()
        thread.join(30)
    cancelled = Job.objects.filter(pk__in=confirmed)
    assert {job.state for job in cancelled} <= {State.CANCELLED}
    for job in cancelled:  # whatever started it came before the cancel, and was concluded
        assert job.finished_at is not None
        assert job.cancel_requested_at is not None
        assert job.started_at is None or job.started_at <= job.cancel_requested_at
