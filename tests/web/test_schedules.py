"""Schedules declared in code: refused where they are wrong, and brought in line with their rows."""

from datetime import UTC, datetime

import pytest

from jobqueue import schedule
from jobqueue.models import Schedule
from jobqueue.scheduling import declared
from jobqueue.scheduling.declared import ScheduleError, synchronise
from tests.sample_tasks import post, send


@pytest.fixture(autouse=True)
def _nothing_declared(monkeypatch):
    monkeypatch.setattr(declared, "_declared", {})


def declare(**changes):
    schedule(**{"name": "nightly", "task": send, "cron": "30 2 * * *", **changes})


def declare_anew(**changes):
    declared._declared.clear()
    declare(**changes)


@pytest.mark.spec("S186")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cron": "61 * * * *"}, "nightly: .*minute field"),
        ({"cron": "0 0 30 2 *"}, "day 30"),
        ({"timezone": "Mars/Base"}, "not a time zone"),
        ({"args": [1, 2]}, "too many positional"),
        ({"args": [object()]}, r"args\[0\]"),
        ({"args": [1], "kwargs": {"unknown": 1}}, "unknown"),
        ({"queue": "not a queue!"}, "queue"),
        ({"queue": "unlisted"}, "unlisted"),
        ({"priority": 101}, "priority"),
        ({"catch_up": "some"}, "catch_up must be one of skip, once, all"),
        ({"name": " "}, "name must be a text"),
        ({"name": "x" * 201}, "name must be a text"),
        ({"task": send.func}, "decorated with @task"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_wrong_declaration_is_refused_with_a_sentence(changes, says):
    with pytest.raises(ScheduleError, match=says):
        declare(**changes)
    assert declared._declared == {}


def test_two_declarations_of_one_name_are_refused():
    declare()
    declare()  # the same again, as from a module imported twice
    with pytest.raises(ScheduleError, match="Two schedules"):
        declare(cron="0 3 * * *")


@pytest.mark.spec("S189")
def test_synchronising_creates_the_row_with_its_next_tick(db):
    declare(task=post, args=["a@example.org"], timezone="Europe/Berlin", catch_up="all")
    assert synchronise().created == ["nightly"]
    row = Schedule.objects.get()
    assert (row.task, row.queue, row.priority) == ("tests.sample_tasks.post", "mail", 5)
    assert (row.args, row.timezone, row.catch_up) == (["a@example.org"], "Europe/Berlin", "all")
    assert row.origin == Schedule.Origin.CODE
    assert row.next_run_at > datetime.now(UTC)
    again = synchronise()
    assert (again.created, again.changed) == ([], [])


@pytest.mark.spec("S189")
def test_an_operators_switch_stays_through_a_changed_declaration(db):
    declare()
    synchronise()
    Schedule.objects.update(enabled=False, disabled_reason="quiet week")
    declare_anew(cron="0 4 * * *")
    done = synchronise()
    row = Schedule.objects.get()
    assert done.changed == ["nightly"]
    assert done.enabled_again == []
    assert (row.enabled, row.cron, row.disabled_reason) == (False, "0 4 * * *", "quiet week")


@pytest.mark.spec("S189")
def test_an_automatic_disable_is_undone_by_the_next_start(db):
    declare()
    synchronise()
    Schedule.objects.update(enabled=False, disabled_reason="automatic: TypeError", strikes=3)
    assert synchronise().enabled_again == ["nightly"]
    row = Schedule.objects.get()
    assert (row.enabled, row.strikes, row.disabled_reason) == (True, 0, "")
    assert row.next_run_at > datetime.now(UTC)


@pytest.mark.spec("S189", "D60")
def test_a_changed_expression_means_no_immediate_run(db):
    declare()
    synchronise()
    Schedule.objects.update(next_run_at=datetime(2020, 1, 1, tzinfo=UTC))
    declare_anew(cron="0 0 1 * *")
    synchronise()
    row = Schedule.objects.get()
    assert row.next_run_at > datetime.now(UTC)
    assert row.next_run_at.day == 1


@pytest.mark.spec("S189")
def test_other_changes_keep_the_plan(db):
    declare()
    synchronise()
    planned = Schedule.objects.get().next_run_at
    declare_anew(args=[7])
    assert synchronise().changed == ["nightly"]
    row = Schedule.objects.get()
    assert (row.args, row.next_run_at) == ([7], planned)


@pytest.mark.spec("S189")
def test_a_schedule_of_an_operator_is_never_touched(db):
    Schedule.objects.create(name="nightly", task="x.y", cron="* * * * *")
    declare()
    assert synchronise().foreign == ["nightly"]
    assert Schedule.objects.get().task == "x.y"


@pytest.mark.spec("S189")
def test_a_schedule_that_code_declares_no_more_is_reported_and_left(db):
    declare()
    synchronise()
    declared._declared.clear()
    assert synchronise().undeclared == ["nightly"]
    assert Schedule.objects.get().enabled


@pytest.mark.spec("D60")
@pytest.mark.parametrize("change", [{"cron": "0 5 * * *"}, {"timezone": "Asia/Kolkata"}])
def test_saving_another_expression_or_zone_drops_the_plan(db, change):
    declare()
    synchronise()
    row = Schedule.objects.get()
    row.save()
    assert row.next_run_at is not None
    for name, value in change.items():
        setattr(row, name, value)
    row.save()
    row.refresh_from_db()
    assert row.next_run_at is None


@pytest.mark.spec("S186")
def test_switching_on_again_clears_the_record(db):
    declare()
    synchronise()
    Schedule.objects.update(enabled=False, disabled_reason="automatic: x", strikes=3)
    assert declared.switch(Schedule.objects.all(), enabled=True) == 1
    row = Schedule.objects.get()
    assert (row.enabled, row.strikes, row.disabled_reason) == (True, 0, "")
    assert row.next_run_at is None
    assert declared.switch(Schedule.objects.all(), enabled=True) == 0
