"""A secret in every field that may hold one: no page, command, log entry or message shows it."""

import io
import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db.models import CharField, JSONField, TextField
from django.test import Client
from django.utils import timezone

from jobqueue import models, operations
from jobqueue.models import (
    Attempt,
    BulkOrder,
    Job,
    JobEvent,
    Queue,
    Schedule,
    ScheduleTick,
    Worker,
)
from jobqueue.operations import schedules
from jobqueue.states import Outcome, State
from tests.web import rows
from tests.web.test_admin_permissions import FORMS, ORDERS, PAGES, ROUTES, TABLES, Things

SECRET = "hunter2-swordfish"
TEXT = f"could not connect: postgresql://ann:{SECRET}@db/shop, password={SECRET}"
VALUE = {"password": SECRET, "note": TEXT, "headers": [["Authorization", SECRET]]}

# Which fields may hold what other people or their code have written.
FREE = {
    Job: {"args", "kwargs", "last_error", "cancel_reason", "progress", "result", "reason"},
    Attempt: {"error_message", "traceback"},
    JobEvent: {"note"},
    Schedule: {"args", "kwargs", "disabled_reason", "last_error"},
    Worker: {"stop_report", "wake"},
    BulkOrder: {"reason", "trail", "parameters"},
    Queue: set(),
    ScheduleTick: set(),
}
# Names, ids and words of the app: shown as they are.
PLAIN = {
    Job: {
        *("task", "signature", "queue", "backend", "options", "state", "unique_key", "tenant"),
        *("idempotency_key", "concurrency_key", "traceparent", "cancel_requested_by"),
    },
    Attempt: {"outcome", "error_class", "recorded_by", "late_outcome"},
    JobEvent: {"queue", "kind", "actor"},
    Schedule: {
        *("name", "task", "signature", "cron", "timezone", "queue", "catch_up", "origin"),
    },
    Worker: {
        *("name", "hostname", "pid_namespace", "time_namespace", "boot_id", "supervisor"),
        *("version", "queues", "phase", "idle_reason"),
    },
    BulkOrder: {"verb", "filter", "nonce", "asker_id", "asker", "state", "left"},
    Queue: {"name", "paused_by"},
    ScheduleTick: {"fired_by"},
}
pytestmark = [pytest.mark.spec("S228"), pytest.mark.django_db]


def secrets(model: Any, **fields: Any) -> dict[str, Any]:
    """The secret in every field that may hold one."""
    found: dict[str, Any] = {}
    for name in FREE[model]:
        field = model._meta.get_field(name)
        found[name] = VALUE if isinstance(field, JSONField) else TEXT[: field.max_length]
    return found | fields


def test_every_field_that_holds_text_is_said_to_be_free_or_plain() -> None:
    others = {"LeaderLease", "Minute", "Dashboard"}  # names and numbers only
    kept = [getattr(models, name) for name in dir(models)]
    tables = {one for one in kept if hasattr(one, "_meta")}
    assert {one.__name__ for one in tables} - others == {one.__name__ for one in FREE}
    for model in FREE:
        texts = {
            field.name
            for field in model._meta.concrete_fields
            if isinstance(field, CharField | TextField | JSONField)
        }
        assert texts == FREE[model] | PLAIN[model], model
        assert not FREE[model] & PLAIN[model]


@pytest.fixture
def everything(operators_tasks: None) -> Things:
    report = {"reason": TEXT, "password": SECRET}
    worker = rows.worker(**secrets(Worker, stop_report=None))
    for fields in ({"phase": "STOPPED"}, {"died_at": timezone.now()}):
        rows.worker(**secrets(Worker, stop_report=report, **fields))
    fields = secrets(
        Job,
        args=["ann", SECRET, TEXT],
        signature="(user, password, note)",
        cancel_requested_at=timezone.now(),
        attempts=2,
        failures=1,
    )
    jobs = [rows.job(state, **fields) for state in State if state != State.RUNNING]
    jobs.append(rows.job(State.RUNNING, **fields, worker=worker.pk))
    for job in jobs:
        for number, outcome in enumerate(Outcome, 1):
            rows.attempt(job, number, outcome, **secrets(Attempt), error_class="shop.Error")
        JobEvent.objects.create(**secrets(JobEvent, job=job.pk, kind="retry"))
        JobEvent.objects.create(
            **secrets(JobEvent, job=job.pk, kind="loop blocked", note=f"{TEXT} at:\n{TEXT}")
        )
    Queue.objects.create(name="mail", paused_at=timezone.now())
    fields = {"name": "nightly", "task": rows.TASK, "cron": "30 2 * * *", "enabled": False}
    schedule = Schedule.objects.create(**secrets(Schedule, args=["ann", SECRET], **fields))
    trail = [{"at": timezone.now().isoformat(), "what": "order", "by": "ann", "reason": TEXT}]
    order = BulkOrder.objects.create(
        **secrets(BulkOrder, verb="retry", filter={}, moment=timezone.now(), nonce="1",
                  asker_id="1", asker="ann", trail=trail, state="REFUSED",
                  finished_at=timezone.now()),
    )  # fmt: skip
    return Things(jobs[0].pk, worker.pk, schedule.pk, order.pk)


def test_no_page_shows_a_secret(operator: Client, everything: Things) -> None:
    addresses = [everything.address(name) for name in (*PAGES, *FORMS)]
    addresses += [f"/admin/jobqueue/job/{job.pk}/" for job in Job.objects.all()]
    addresses += [f"/admin/jobqueue/worker/{worker.pk}/" for worker in Worker.objects.all()]
    addresses += [f"/admin/jobqueue/job/?state={state}" for state in State]
    addresses += ["/admin/jobqueue/job/?text=connect", "/admin/", "/admin/jobqueue/"]
    shown = ""
    for address in addresses:
        for headers in ({}, {"HX-Request": "true"}):
            page = operator.get(address, headers=headers)
            assert page.status_code < 500
            assert SECRET not in page.content.decode(), address
            shown += page.content.decode()
    assert shown.count("could not connect") > len(addresses)  # else nothing is shown of them
    assert {*PAGES, *FORMS, *TABLES, *ORDERS} == set(ROUTES)


def test_no_answer_to_an_act_and_no_entry_of_the_admin_s_log_shows_a_secret(
    operator: Client, everything: Things
) -> None:
    posted = 0
    for name, table in TABLES.items():
        for act in table:
            pk = everything.job
            if name == "job_act":
                wanted = [str(state) for state in table[act].act.states]
                found = Job.objects.filter(state__in=wanted).order_by("pk").first()
                pk = pk if found is None else found.pk
            form = {"job": pk, "confirmed": "1", "reason": TEXT, "priority": "5", "queue": "mail"}
            for sent in (form, {key: form[key] for key in ("job", "reason")}):
                answer = operator.post(everything.address(name, act), sent, follow=True)
                assert SECRET not in answer.content.decode(), (name, act)
                posted += answer.status_code == 200
    assert posted > 10
    entries = "\n".join(f"{e.object_repr} {e.change_message}" for e in LogEntry.objects.all())
    assert "could not connect" in entries
    assert SECRET not in entries


def test_an_error_that_a_message_or_a_form_quotes_is_covered(
    operator: Client, everything: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError(TEXT)

    Schedule.objects.update(origin=Schedule.Origin.CODE)
    monkeypatch.setattr(schedules, "run", fails)
    address = everything.address("schedule_act", "run")
    answer = operator.post(address, {"confirmed": "1"}, follow=True).content.decode()
    assert "It cannot run: could not connect" in answer
    assert SECRET not in answer


def said(*words: str) -> str:
    out = io.StringIO()
    try:
        call_command("jobqueue", *words, stdout=out, stderr=out)
    except (CommandError, SystemExit) as error:
        out.write(str(error))
    return out.getvalue()


def test_no_command_shows_a_secret(everything: Things, monkeypatch: pytest.MonkeyPatch) -> None:
    Queue.objects.update(paused_by=TEXT)
    Worker.objects.update(name=f"polling {TEXT}", wake=f"polling ({TEXT})")
    told = ""
    for words in (
        ("status",),
        ("status", "--json"),
        ("doctor",),
        ("doctor", "--json"),
        ("retry", "--state", "DEAD", "--reason", TEXT),
        ("cancel", "--all", "--json", "--reason", TEXT),
    ):
        told += said(*words)
    assert "could not connect" in told
    assert SECRET not in told

    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError(TEXT)

    monkeypatch.setattr(operations, "pause", fails)
    assert SECRET not in said("pause", "mail")


def test_no_command_lets_a_name_write_lines_or_move_the_cursor(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = "x\n0 DEAD\x1b[2K\x9b1A\u202e\u2028"
    rows.worker(name=forged, queues=["mail"])
    rows.worker(name=forged, queues=["mail"], phase="RUNNING", wake="polling (x)")
    rows.job(queue="q\x1b[31m\nworker x", parked_at=None)
    rows.job(State.SCHEDULED, task=f"shop.{forged}", parked_at=timezone.now())
    Queue.objects.create(name="mail\r", paused_at=timezone.now(), paused_by=forged)
    for words in (("status",), ("doctor",)):
        shown = said(*words)
        assert "\\n0 DEAD\\x1b[2K\\x9b1A\\u202e\\u2028" in shown
        assert all(character.isprintable() or character == "\n" for character in shown)
        assert "\n0 DEAD" not in shown
        as_json = said(*words, "--json")
        assert as_json.isascii()
        assert "\x1b" not in as_json
        assert "0 DEAD" in as_json
        json.loads(as_json.splitlines()[0])
