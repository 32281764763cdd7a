from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobqueue.insight import doctor, why
from jobqueue.models import Queue
from jobqueue.states import FINAL, IdleReason, State
from jobqueue.versions import UNDERSTANDS
from tests.web import rows

pytestmark = pytest.mark.django_db


def texts(job: Any) -> str:
    return " ".join(f"{c.text} {c.remedy}" for c in why.explain(job, timezone.now()))


@pytest.mark.parametrize("state", [*FINAL, State.RUNNING])
def test_what_runs_or_has_ended_needs_no_reason(state: State) -> None:
    assert why.explain(rows.job(state), timezone.now()) == []


def test_each_hindrance_is_named_with_its_remedy() -> None:
    job = rows.job(queue="mail")
    assert "No worker is running." in texts(job)
    worker = rows.worker()
    assert "No running worker serves the queue mail." in texts(job)
    assert "runworker --queues mail" in texts(job)
    Queue.objects.create(name="mail", paused_at=timezone.now(), paused_by="ann")
    assert "The queue mail was paused by ann." in texts(job)
    Queue.objects.all().delete()
    worker.queues = ["mail"]
    worker.concurrency = 1
    worker.save()
    assert "It is next" in texts(job)
    rows.job(State.RUNNING, queue="mail", worker=worker.pk)
    assert "The one slot that serves its queue is in use." in texts(job)
    worker.phase = "DRAINING"
    worker.save()
    assert "is stopping" in texts(job)


def test_jobs_ahead_are_those_that_a_worker_claims_first() -> None:
    rows.worker()
    now = timezone.now()
    rows.job(priority=5, run_at=now + timedelta(seconds=5))
    rows.job(run_at=now - timedelta(seconds=5))
    rows.job(priority=-5)
    rows.job(queue="mail")
    assert "2 jobs are ahead of it." in texts(rows.job(run_at=now))


def test_a_scheduled_job_says_when_it_is_due_and_a_parked_one_what_is_missing() -> None:
    assert "It is not due yet." in texts(rows.job(State.SCHEDULED))
    assert "waiting for its next attempt" in texts(
        rows.job(State.SCHEDULED, failures=1, attempts=1)
    )
    parked = rows.job(State.SCHEDULED, task="shop.tasks.old", parked_at=timezone.now())
    assert "No worker knows the task shop.tasks.old yet." in texts(parked)
    assert "Its last two attempts were lost" in texts(rows.job(suspect=True))
    newer = rows.job(needs=UNDERSTANDS + 1)
    assert "It needs newer code than this" in texts(newer)
    late = rows.job(State.SCHEDULED, run_at=timezone.now() - timedelta(seconds=1))
    assert "There is no leader" in texts(late)
    held = rows.job(State.SCHEDULED, hold_until=timezone.now() + timedelta(minutes=1))
    assert "may still touch it" in texts(held)


def test_a_blocked_job_names_the_holder_of_its_key() -> None:
    blocked = rows.job(State.BLOCKED, concurrency_key="acct-7")
    holder = rows.job(State.RUNNING, concurrency_key="acct-7")
    assert f"Its key acct-7 is held by job {holder.pk}." in texts(blocked)


@pytest.mark.parametrize("reason", IdleReason)
def test_why_a_worker_claims_nothing_is_said_wherever_an_operator_looks(
    reason: IdleReason, operator: Client
) -> None:
    job = rows.job(queue="mail")
    worker = rows.worker(queues=["mail"], idle_reason=reason)
    words = str(why.IDLE[reason])
    assert words in texts(job)
    assert any(f"claims nothing: {reason}" in str(finding) for finding in doctor.examine())
    for page in ("", f"{worker.pk}/"):
        assert words in operator.get(f"/admin/jobqueue/worker/{page}").content.decode()
