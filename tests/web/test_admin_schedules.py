"""Schedules that an operator makes, edits and deletes."""

import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils import timezone

from jobqueue import redact
from jobqueue.models import JobEvent, Schedule
from tests.web import rows

LIST = "/admin/jobqueue/schedule/"
NEW = f"{LIST}new/"
GOOD = {
    "name": "nightly",
    "task": rows.TASK,
    "cron": "30 2 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "args": "[7]",
    "kwargs": "{}",
    "queue": "",
    "priority": "5",
    "catch_up": "once",
}
pytestmark = [
    pytest.mark.spec("S226", "S227"),
    pytest.mark.django_db,
    pytest.mark.usefixtures("operators_tasks"),
]


def made(**fields: Any) -> Schedule:
    plan = {"name": "nightly", "task": rows.TASK, "cron": "0 3 * * *", "args": [7]}
    plan["signature"] = "(order, **options)"
    return Schedule.objects.create(**plan | fields)


LONG = "9" * 5_000


@pytest.mark.parametrize("value", ["[1e5000]", f"[{LONG}]"])
def test_arguments_that_python_cannot_read_are_shown_as_that(operator: Client, value: str) -> None:
    row, fine = made(), made(name="fine")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobqueue_schedule SET args = %s::jsonb WHERE id = %s", [value, row.pk]
        )
    own = f"{LIST}{row.pk}/"
    for address in ("/admin/jobqueue/dashboard/", LIST, own, f"{own}edit/"):
        answer = operator.get(address)
        assert answer.status_code == 200, address
    shown = operator.get(own).content.decode()
    assert "cannot be read" in shown
    assert LONG not in shown
    assert "fine" in operator.get(LIST).content.decode()
    # It cannot run, and what is stored stays.
    ran = operator.post(f"{own}act/run/", {"confirmed": "1"}, follow=True).content.decode()
    assert "It cannot run: args cannot be read" in ran
    operator.post(f"{own}act/disable/", {"confirmed": "1"})
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT enabled, args = %s::jsonb FROM jobqueue_schedule WHERE id = %s", [value, row.pk]
        )
        assert cursor.fetchone() == (False, True)
    assert Schedule.objects.get(pk=fine.pk).args == [7]


def test_a_new_schedule_waits_for_the_leader_to_plan_it(operator: Client) -> None:
    assert NEW in operator.get(LIST).content.decode()
    answer = operator.post(NEW, GOOD, follow=True)
    assert "Saved nightly." in answer.content.decode()
    row = Schedule.objects.get()
    assert (row.args, row.cron, row.priority, row.enabled) == ([7], "30 2 * * MON-FRI", 5, True)
    assert (row.origin, row.next_run_at) == (Schedule.Origin.ADMIN, None)
    assert (LogEntry.objects.get().object_id, JobEvent.objects.get().kind) == (
        str(row.pk),
        "create",
    )


def test_a_new_schedule_takes_the_priority_of_its_task_unless_another_is_given(
    operator: Client,
) -> None:
    page = operator.get(NEW).content.decode()
    assert "Empty: the task&#x27;s own priority." in page
    assert 'name="priority" value=' not in page
    post = {"task": "tests.sample_tasks.post", "args": '["a"]'}  # declared with priority 5
    for name, given, stored in (("own", "", 5), ("none", "0", 0), ("other", "-3", -3)):
        operator.post(NEW, GOOD | post | {"name": name, "priority": given})
        assert Schedule.objects.get(name=name).priority == stored
    left_out = {key: value for key, value in (GOOD | post).items() if key != "priority"}
    operator.post(NEW, left_out)
    row = Schedule.objects.get(name=GOOD["name"])
    assert row.priority == 5
    operator.post(f"{LIST}{row.pk}/edit/", GOOD | post | {"priority": "0"})
    operator.post(f"{LIST}{row.pk}/edit/", GOOD | post | {"priority": ""})
    row.refresh_from_db()
    assert row.priority == 5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cron": "61 * * * *"}, "minute field"),
        ({"cron": "0 0 30 2 *"}, "day 30"),
        ({"timezone": "Mars/Base"}, "is not a time zone"),
        ({"task": "shop.tasks.nothing"}, "shop.tasks.nothing"),
        ({"task": "os.system"}, "os.system is not one of the available choices"),
        ({"task": "tests.sample_tasks.send"}, "is not one of the available choices"),
        ({"args": "7"}, "Write a list"),
        ({"args": "[7"}, "valid JSON"),
        ({"args": "[1, 2, 3]"}, "too many positional"),
        ({"kwargs": "[]"}, "Write an object"),
        ({"queue": "unlisted"}, "unlisted"),
        ({"priority": "101"}, "priority"),
        ({"name": "taken"}, "There is a schedule of that name."),
        ({"args": json.dumps([redact.COVER])}, "hidden values"),
    ],
)
def test_a_schedule_that_would_fail_at_every_tick_is_refused_with_a_message(
    operator: Client, changes: dict[str, str], says: str
) -> None:
    made(name="taken")
    answer = operator.post(NEW, GOOD | changes)
    assert answer.status_code == 200
    assert says in answer.content.decode()
    assert Schedule.objects.count() == 1


def test_an_edit_changes_only_the_edited_fields_and_nothing_that_the_leader_wrote(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = made(next_run_at=timezone.now(), timezone="Europe/Berlin", priority=5)
    address = f"{LIST}{row.pk}/edit/"
    assert address in operator.get(f"{LIST}{row.pk}/").content.decode()
    save = Schedule.save

    def late(self: Schedule, **options: Any) -> None:
        Schedule.objects.update(last_run_at="2027-01-01T00:00Z", strikes=2)  # meanwhile
        save(self, **options)

    monkeypatch.setattr(Schedule, "save", late)
    assert operator.post(address, GOOD | {"cron": "0 3 * * *", "priority": "6"}).status_code == 302
    row.refresh_from_db()
    assert (row.priority, row.strikes, row.last_run_at is None) == (6, 2, False)
    assert row.next_run_at is not None  # the same plan
    assert operator.post(address, GOOD | {"priority": "6"}).status_code == 302
    row.refresh_from_db()
    assert row.next_run_at is None  # another plan, which the leader makes
    assert list(JobEvent.objects.order_by("pk").values_list("note", flat=True)) == [
        "schedule nightly: priority",
        "schedule nightly: cron",
    ]
    assert operator.post(address, GOOD | {"priority": "6"}).status_code == 302
    assert JobEvent.objects.count() == 2  # nothing was changed


@pytest.mark.spec("S228")
def test_covered_arguments_are_kept_unless_they_are_entered_again(operator: Client) -> None:
    row = made(kwargs={"password": "hunter2", "n": 1})
    address = f"{LIST}{row.pk}/edit/"
    shown = operator.get(address).content.decode()
    assert "hunter2" not in shown
    covered = json.dumps({"password": redact.COVER, "n": 1})
    operator.post(address, GOOD | {"kwargs": covered, "priority": "9"})
    row.refresh_from_db()
    assert (row.kwargs, row.priority) == ({"password": "hunter2", "n": 1}, 9)
    half = json.dumps({"password": redact.COVER, "n": 2})
    assert "Enter the hidden" in operator.post(address, GOOD | {"kwargs": half}).content.decode()
    operator.post(address, GOOD | {"kwargs": json.dumps({"password": "new"})})
    row.refresh_from_db()
    assert row.kwargs == {"password": "new"}


def test_a_schedule_declared_in_code_cannot_be_edited(operator: Client) -> None:
    row = made(origin=Schedule.Origin.CODE)
    assert "/edit/" not in operator.get(f"{LIST}{row.pk}/").content.decode()
    address = f"{LIST}{row.pk}/edit/"
    for answer in (operator.get(address), operator.post(address, GOOD)):
        assert answer.status_code == 403


def test_deleting_a_schedule_asks_for_confirmation(operator: Client) -> None:
    row = made()
    address = f"{LIST}{row.pk}/act/delete/"
    assert "It will not fire" in operator.post(address).content.decode()
    assert Schedule.objects.exists()
    answer = operator.post(address, {"confirmed": "1", "reason": "obsolete"}, follow=True)
    assert "Deleted nightly." in answer.content.decode()
    assert not Schedule.objects.exists()
    assert LogEntry.objects.get().change_message == "delete: obsolete"
    assert JobEvent.objects.get().note == "schedule nightly: obsolete"


SECRET = "tests.web.tasks.log_in"  # (user, password)


@pytest.mark.spec("S228")
def test_another_task_uncovers_nothing_that_was_covered(operator: Client) -> None:
    row = made(
        task=SECRET, args=["ann", "hunter2"], kwargs={}, signature="(user, password, **options)"
    )
    address, dots = f"{LIST}{row.pk}/edit/", json.dumps(["ann", redact.COVER])
    assert "hunter2" not in operator.get(address).content.decode()
    post = GOOD | {"task": "tests.web.tasks.note", "args": dots}
    page = operator.post(address, post).content.decode()
    assert "Enter the hidden values again." in page
    assert "hunter2" not in page
    operator.post(address, post | {"task": SECRET})  # the same task: they are kept
    row.refresh_from_db()
    assert (row.args, row.cron) == (["ann", "hunter2"], GOOD["cron"])
    operator.post(address, post | {"args": '["ann", "new"]'})  # entered again: they may be seen
    row.refresh_from_db()
    assert (row.task, row.args) == ("tests.web.tasks.note", ["ann", "new"])
    assert row.signature == "(subject, text)"
    assert "new" in operator.get(address).content.decode()


@pytest.mark.spec("S228")
def test_what_was_stored_as_a_secret_stays_one_when_the_code_changes(operator: Client) -> None:
    row = made(task="tests.web.tasks.note", args=["ann", "hunter2"], signature="(user, password)")
    gone = made(name="gone", task="shop.tasks.gone", args=["hunter2"], signature="(password)")
    unknown = made(name="unknown", task="shop.tasks.gone", args=["hunter2"], signature="")
    edit = f"{LIST}{row.pk}/edit/"
    dots = json.dumps(["ann", redact.COVER])
    operator.post(edit, GOOD | {"task": row.task, "args": dots, "kwargs": "{}"})
    row.refresh_from_db()
    assert (row.cron, row.signature) == (GOOD["cron"], "(user, password)")
    for each in (row, gone, unknown):
        for address in (f"{LIST}{each.pk}/", f"{LIST}{each.pk}/edit/"):
            assert "hunter2" not in operator.get(address).content.decode(), address


@pytest.mark.spec("S228")
def test_a_job_without_a_known_signature_shows_no_positional_value(operator: Client) -> None:
    job = rows.job(signature="", args=["hunter2"], kwargs={"order": 7})
    page = operator.get(f"/admin/jobqueue/job/{job.pk}/").content.decode()
    assert "hunter2" not in page
    assert redact.COVER in page
    found = operator.get("/admin/jobqueue/job/", {"text": "hunter2"}).content.decode()
    assert f"#{job.pk}" not in found
