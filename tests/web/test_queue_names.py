"""One rule for the name of a queue, at every door."""

from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from jobqueue import operations
from jobqueue.insight import doctor, why
from jobqueue.models import JobEvent, Queue
from tests.web import rows

pytestmark = [pytest.mark.spec("S13"), pytest.mark.django_db]


@pytest.mark.parametrize("name", ["repotrs", "no spaces", "", "x" * 64, None])
def test_every_door_refuses_a_queue_that_does_not_exist(
    name: Any, operator: Client, settings: Any
) -> None:
    job = rows.job()
    for door in (
        lambda: operations.pause(name),
        lambda: operations.resume(name),
        lambda: operations.move(job, name),
    ):
        with pytest.raises(ValueError, match=r"write|is not a queue name"):
            door()
    if name:
        address = f"/admin/jobqueue/queue/{quote(name)}/act/pause/"
        assert operator.post(address, {"confirmed": "1"}).status_code == 404
        answer = operator.post(
            "/admin/jobqueue/job/act/move/",
            {"job": job.pk, "confirmed": "1", "queue": name},
        )
        assert answer.status_code == 200
        with pytest.raises(CommandError, match=r"(?i)queue"):
            call_command("jobqueue", "pause", name)
    job.refresh_from_db()
    assert job.queue == "default"
    assert not Queue.objects.exists()
    assert not JobEvent.objects.exists()


def test_a_queue_that_left_the_settings_is_known_while_something_is_in_it() -> None:
    job = rows.job(queue="former")
    assert operations.pause("former").changed == 1
    job.delete()
    assert operations.resume("former").changed == 1
    rows.worker()
    rows.job(queue="former")
    advice = "Add it to QUEUES of TASKS"
    causes = why.explain(rows.job(queue="former"), timezone.now())
    assert any(advice in str(cause.remedy) for cause in causes)
    assert any(advice in str(finding) for finding in doctor.examine())
