"""Everything in a row is shown as text."""

import re
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.db.models import CharField, JSONField, Model, TextField
from django.test import Client
from django.utils import timezone

from jobqueue.admin.labels import BLOCKED_LOOP
from jobqueue.models import (
    Attempt,
    Job,
    JobEvent,
    LeaderLease,
    Queue,
    Schedule,
    ScheduleTick,
    Worker,
)
from jobqueue.states import Outcome, Phase, State
from tests.web import rows

EVIL = (
    "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>"
    "{{ settings.SECRET_KEY }}{% now 'Y' %}"
)
ALLOWED = re.compile(r'<script src="[^"<>]*" defer ?></script>|<script src="[^"<>]*"\s*></script>')
# Fields that the database itself keeps to the app's words.
WORDS = {
    (Job, "state"),
    (Attempt, "outcome"),
    (Worker, "phase"),
    (Schedule, "catch_up"),
    (Schedule, "origin"),
}


def evil(model: type[Model], **fields: Any) -> dict[str, Any]:
    """A value for every field that may hold text, those of next year included."""
    found: dict[str, Any] = {}
    for field in model._meta.concrete_fields:
        if (model, field.name) in WORDS:
            continue
        text = f"{EVIL}|{model.__name__}.{field.name}|"
        if isinstance(field, JSONField):
            found[field.name] = [text, {text: [text]}]
            if field.name in ("kwargs", "options"):
                found[field.name] = {text: [text]}
        elif isinstance(field, CharField | TextField):
            found[field.name] = text[: field.max_length]
    return found | fields


def everything() -> list[str]:
    """Put it into every field of every table, and return the pages' addresses."""
    worker = rows.worker(**evil(Worker, queues=[EVIL], stop_report=None, phase=Phase.RUNNING))
    report = {
        EVIL: EVIL,
        "reason": f"{EVIL}|Worker.stop_report|",
        "completed": EVIL,
        "duration_seconds": EVIL,
    }
    gone = rows.worker(
        **evil(Worker, queues=[f"{EVIL}|Worker.queues|"], stop_report=report, phase=Phase.STOPPED)
    )
    lost = rows.worker(**evil(Worker, queues=[EVIL], died_at=timezone.now()))
    fields = evil(
        Job,
        kwargs={EVIL: EVIL, "n": f"{EVIL}|Job.kwargs|"},
        signature=f"({EVIL})",
        progress={"done": EVIL, "total": EVIL, "note": f"{EVIL}|Job.progress|"},
        cancel_requested_at=timezone.now(),
        failures=1,
        attempts=1,
    )
    jobs = [rows.job(state, **fields) for state in State if state != State.RUNNING]
    jobs.append(
        rows.job(State.RUNNING, **fields, worker=worker.pk, not_ending_since=timezone.now())
    )
    Job.objects.filter(state=State.SCHEDULED).update(parked_at=timezone.now())
    for job in jobs:
        for number, outcome in enumerate(Outcome, 1):
            rows.attempt(job, number, outcome, **evil(Attempt))
        JobEvent.objects.create(**evil(JobEvent, job=job.pk))
        stack = f"{EVIL}\n{EVIL}"
        JobEvent.objects.create(**evil(JobEvent, job=job.pk, kind=BLOCKED_LOOP, note=stack))
    Queue.objects.create(**evil(Queue, paused_at=timezone.now()))
    LeaderLease.objects.create(
        **evil(LeaderLease), holder=uuid4(), acquired_at=timezone.now(), expires_at=timezone.now()
    )
    LeaderLease.objects.create(
        name="maintenance", holder=worker.pk, acquired_at=timezone.now(), expires_at=timezone.now()
    )
    plan = {"cron": "30 2 * * *", "timezone": "UTC", "signature": f"({EVIL})"}
    good = Schedule.objects.create(**evil(Schedule, name=f"1{EVIL}", **plan))
    bad = Schedule.objects.create(**evil(Schedule, enabled=False))
    for schedule in (good, bad):
        ScheduleTick.objects.create(**evil(ScheduleTick), schedule=schedule, tick_at=timezone.now())
    return [
        "/admin/jobqueue/dashboard/",
        "/admin/jobqueue/dashboard/live/",
        "/admin/jobqueue/job/",
        *(f"/admin/jobqueue/job/?state={state}" for state in State),
        "/admin/jobqueue/queue/",
        "/admin/jobqueue/worker/",
        *(f"/admin/jobqueue/worker/{one.pk}/" for one in (worker, gone, lost)),
        "/admin/jobqueue/leaderlease/",
        "/admin/jobqueue/schedule/",
        "/admin/jobqueue/schedule/new/",
        *(f"/admin/jobqueue/schedule/{one.pk}/" for one in (good, bad)),
        *(f"/admin/jobqueue/schedule/{one.pk}/edit/" for one in (good, bad)),
        *(f"/admin/jobqueue/job/{job.pk}/" for job in jobs),
        *(f"/admin/jobqueue/job/{job.pk}/live/" for job in jobs),
    ]


# Fields that no page shows. Each other one must be seen, or nothing is proven for it.
HIDDEN = {
    "Job": "signature backend options unique_key idempotency_key traceparent",
    "Schedule": "signature",
    "Worker": "pid_namespace time_namespace boot_id supervisor",
}


@pytest.mark.spec("S228", "D97")
def test_html_scripts_and_template_tags_in_any_field_are_shown_as_plain_text(
    operator: Client,
) -> None:
    seen = ""
    for address in everything():
        shown = operator.get(address).content.decode()
        check(shown, address)
        seen += shown
    for name in ("q", "text", "task", "queue", "tenant", "worker", "age", "state", "after"):
        check(operator.get("/admin/jobqueue/job/", {name: EVIL}).content.decode(), name)
    missing = set()
    for model in (Attempt, Job, JobEvent, Queue, Schedule, ScheduleTick, Worker):
        for name, value in evil(model).items():
            whole = f"|{model.__name__}.{name}|"
            if whole in str(value) and whole not in seen:
                missing.add(whole.strip("|"))
    hidden = {f"{model}.{name}" for model, names in HIDDEN.items() for name in names.split()}
    assert missing == hidden


@pytest.mark.spec("S228", "D97")
def test_submitted_values_are_shown_as_plain_text(operator: Client) -> None:
    everything()
    jobs = list(Job.objects.values_list("pk", flat=True))
    form = {"job": jobs, "next": EVIL, "reason": EVIL, "as_of": EVIL, "nonce": EVIL}
    check(operator.post("/admin/jobqueue/job/act/retry/", form).content.decode(), "confirm")
    form |= {"confirmed": "1", "queue": EVIL}
    check(operator.post("/admin/jobqueue/job/act/move/", form).content.decode(), "refused")
    done = operator.post("/admin/jobqueue/job/act/retry/", form, follow=True)
    check(done.content.decode(), "done")
    schedule = Schedule.objects.order_by("pk")[0]
    for act in ("run", "disable", "delete"):
        address = f"/admin/jobqueue/schedule/{schedule.pk}/act/{act}/"
        check(operator.post(address).content.decode(), f"confirm {act}")
        sent = {"confirmed": "1", "reason": EVIL}
        check(operator.post(address, sent, follow=True).content.decode(), act)
    fields = ("name", "task", "cron", "timezone", "args", "kwargs", "queue", "priority", "catch_up")
    refused = operator.post("/admin/jobqueue/schedule/new/", dict.fromkeys(fields, EVIL))
    check(refused.content.decode(), "new schedule")


def check(shown: str, where: str) -> None:
    assert "<img src=x" not in shown, where
    rest = ALLOWED.sub("", shown)
    assert "<script" not in rest, where
    assert str(settings.SECRET_KEY) not in shown, where
    for attribute in re.findall(r'="([^"]*)"', shown):
        assert "<" not in attribute or "&lt;" in attribute, where
