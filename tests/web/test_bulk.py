from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from jobqueue.admin import bulk_action, perform
from jobqueue.context import Control, JobContext
from jobqueue.exceptions import JobCancelled
from jobqueue.models import Job, JobEvent
from jobqueue.states import State
from tests.web import rows

pytestmark = [pytest.mark.spec("S127", "S227"), pytest.mark.django_db]
FORM = {"scope": "all", "filter": "state=DEAD", "confirmed": "1"}


def work(job: Job) -> dict[str, Any]:
    """Run the bulk job as a worker would."""
    result = cast(Any, SimpleNamespace(id=str(job.pk)))
    context = JobContext(task_result=result, control=Control())
    return bulk_action.run.func(context, *job.args, **job.kwargs)


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform, "AT_ONCE", 5)
    monkeypatch.setattr(bulk_action, "SLICE", 4)
    for _ in range(20):
        rows.job(State.DEAD)


def test_many_jobs_are_worked_through_by_a_job_of_its_own(operator: Client, dead: None) -> None:
    asked = operator.post(
        "/admin/jobqueue/job/act/retry/", {"scope": "all", "filter": "state=DEAD"}
    )
    assert "in slices by a job of its own" in asked.content.decode()
    form = FORM | {"reason": "fixed", "nonce": "n1", "as_of": timezone.now().isoformat()}
    answer = operator.post("/admin/jobqueue/job/act/retry/", form)
    job = Job.objects.get(task="jobqueue.admin.bulk_action.run")
    assert answer["Location"] == f"/admin/jobqueue/job/{job.pk}/"
    assert Job.objects.filter(state=State.DEAD).count() == 20
    assert work(job) == {"changed": 20, "asked": 0, "left": {}}
    assert Job.objects.filter(state=State.READY).exclude(pk=job.pk).count() == 20
    assert LogEntry.objects.filter(change_message="retry: fixed").count() == 20
    assert JobEvent.objects.filter(kind="retry", actor="ann").count() == 20


def test_a_double_click_makes_one_job(operator: Client, dead: None) -> None:
    form = FORM | {"nonce": "n1", "as_of": timezone.now().isoformat()}
    for _ in range(3):
        operator.post("/admin/jobqueue/job/act/retry/", form)
    assert Job.objects.filter(task="jobqueue.admin.bulk_action.run").count() == 1


def test_it_stops_between_slices_when_it_is_cancelled_and_goes_on_when_run_again(
    operator: Client, dead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.post("/admin/jobqueue/job/act/retry/", FORM)
    job = Job.objects.get(task="jobqueue.admin.bulk_action.run")
    slices: list[object] = []

    def stop(self: JobContext) -> None:
        slices.append(self)
        if len(slices) == 3:
            raise JobCancelled

    monkeypatch.setattr(JobContext, "raise_if_cancelled", stop)
    with pytest.raises(JobCancelled):
        work(job)
    assert Job.objects.filter(state=State.DEAD).count() == 12
    assert work(job)["changed"] == 12


def test_jobs_that_came_later_are_left_alone_and_so_is_the_bulk_job_itself(
    operator: Client, dead: None
) -> None:
    for _ in range(10):
        rows.job()
    operator.post("/admin/jobqueue/job/act/cancel/", FORM | {"filter": "state=READY"})
    job = Job.objects.get(task="jobqueue.admin.bulk_action.run")
    later = rows.job(enqueued_at=timezone.now())
    assert work(job)["changed"] == 10
    for untouched in (job, later):
        untouched.refresh_from_db()
        assert untouched.state == State.READY
