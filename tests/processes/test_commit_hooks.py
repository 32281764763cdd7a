"""A hook of an atomic handler's commit that outlasts the worker."""

import signal

import pytest

from jobqueue.models import Attempt, Job
from tests.children import wait_until
from tests.processes import tempers as tasks
from tests.processes.fleet import Fleet, adds_up

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
    pytest.mark.spec("S79", "S134"),
]


def test_a_stop_waits_for_a_hook_of_the_commit(fleet: Fleet) -> None:
    worker = fleet.start(DRAIN_SECONDS=0.2, CANCEL_SECONDS=30, LEASE_SECONDS=40)
    job = tasks.hang_after_commit.enqueue(3)
    wait_until(lambda: fleet.count("hook"))
    assert worker.stop() == 0
    assert Job.objects.get(pk=job.id).state == "SUCCEEDED"
    assert (worker.report["completed"], worker.report["interrupted"]) == (1, 0)
    assert not worker.events("commit_hook_abandoned")


def test_one_that_outlasts_the_stop_is_named_and_its_job_has_succeeded(fleet: Fleet) -> None:
    worker = fleet.start(DRAIN_SECONDS=0.3, CANCEL_SECONDS=0.3)
    job = tasks.hang_after_commit.enqueue(600)
    wait_until(lambda: fleet.count("hook"))
    worker.send(signal.SIGTERM)
    assert worker.ended(40) == 5
    (line,) = worker.events("commit_hook_abandoned")
    assert line["job"] == int(job.id)
    assert "transaction.on_commit(lambda" in line["stack"]
    assert adds_up(worker.report)
    assert (worker.report["completed"], worker.report["unrecorded"]) == (1, 0)
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.hold_until) == ("SUCCEEDED", None)
    assert Attempt.objects.get(job=row).late_outcome == ""
    assert len(worker.events("job_succeeded")) == 1
    assert not worker.events("handler_stop_ignored")
