"""Whatever stands in a row is shown as text."""

import re
from uuid import uuid4

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from jobqueue.models import JobEvent, LeaderLease, Queue, Schedule, ScheduleTick
from jobqueue.states import State
from tests.web import rows

EVIL = (
    "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>"
    "{{ settings.SECRET_KEY }}{% now 'Y' %}"
)
ALLOWED = re.compile(r'<script src="[^"<>]*" defer ?></script>|<script src="[^"<>]*"\s*></script>')


@pytest.mark.spec("S228")
def test_html_script_and_template_text_in_every_field_are_plain_text(operator: Client) -> None:
    worker = rows.worker(
        name=EVIL, hostname=EVIL, version=EVIL, queues=[EVIL], wake=EVIL, phase="RUNNING"
    )
    gone = rows.worker(
        name=EVIL, phase="STOPPED", stop_report={EVIL: EVIL, "reason": EVIL, "completed": EVIL}
    )
    fields = {
        "task": EVIL,
        "args": [EVIL, {EVIL: EVIL}],
        "kwargs": {EVIL: EVIL},
        "reason": EVIL,
        "last_error": EVIL,
        "tenant": EVIL,
        "queue": EVIL[:63],
        "progress": {"done": EVIL, "total": EVIL, "note": EVIL},
        "cancel_requested_at": timezone.now(),
        "cancel_requested_by": EVIL,
        "cancel_reason": EVIL,
        "signature": f"({EVIL})",
        "concurrency_key": EVIL,
    }
    jobs = [rows.job(state, **fields) for state in State if state != State.RUNNING]
    jobs.append(rows.job(State.RUNNING, **fields, worker=worker.pk))
    jobs.append(rows.job(State.DEAD, **fields, result={EVIL: [EVIL]}, attempts=1))
    rows.attempt(
        jobs[-1], error_class=EVIL, error_message=EVIL, traceback=EVIL, late_outcome=EVIL[:11]
    )
    JobEvent.objects.create(job=jobs[-1].pk, kind=EVIL[:32], actor=EVIL, note=EVIL)
    Queue.objects.create(name=EVIL[:63], paused_at=timezone.now(), paused_by=EVIL)
    LeaderLease.objects.create(
        name=EVIL[:63], holder=uuid4(), acquired_at=timezone.now(), expires_at=timezone.now()
    )
    schedule = Schedule.objects.create(
        name=EVIL[:200],
        task=EVIL,
        cron=EVIL,
        timezone=EVIL[:63],
        queue=EVIL[:63],
        args=[EVIL],
        kwargs={EVIL: EVIL},
        disabled_reason=EVIL,
        last_error=EVIL,
    )
    ScheduleTick.objects.create(schedule=schedule, tick_at=timezone.now(), fired_by=EVIL)
    addresses = [
        "/admin/jobqueue/dashboard/",
        "/admin/jobqueue/job/",
        "/admin/jobqueue/queue/",
        "/admin/jobqueue/worker/",
        f"/admin/jobqueue/worker/{worker.pk}/",
        f"/admin/jobqueue/worker/{gone.pk}/",
        "/admin/jobqueue/leaderlease/",
        "/admin/jobqueue/schedule/",
        f"/admin/jobqueue/schedule/{schedule.pk}/",
        *(f"/admin/jobqueue/job/{job.pk}/" for job in jobs),
    ]
    for address in addresses:
        check(operator.get(address).content.decode(), address)
    for name in ("q", "text", "task", "queue", "tenant", "worker", "age", "state", "after"):
        check(operator.get("/admin/jobqueue/job/", {name: EVIL}).content.decode(), name)
    form = {"job": [job.pk for job in jobs], "next": EVIL, "reason": EVIL, "as_of": EVIL}
    check(operator.post("/admin/jobqueue/job/act/retry/", form).content.decode(), "confirm")
    form |= {"confirmed": "1", "queue": EVIL}
    check(operator.post("/admin/jobqueue/job/act/move/", form).content.decode(), "refused")
    done = operator.post("/admin/jobqueue/job/act/retry/", form, follow=True)
    check(done.content.decode(), "done")


def check(shown: str, where: str) -> None:
    assert "<img src=x" not in shown, where
    rest = ALLOWED.sub("", shown)
    assert "<script" not in rest, where
    assert str(settings.SECRET_KEY) not in shown, where
    for attribute in re.findall(r'="([^"]*)"', shown):
        assert "<" not in attribute or "&lt;" in attribute, where
