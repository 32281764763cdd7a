from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobqueue.admin import charts
from jobqueue.models import LeaderLease, Minute, Queue, Schedule
from jobqueue.states import State
from tests.web import rows

DASHBOARD = "/admin/jobqueue/dashboard/"
pytestmark = pytest.mark.spec("S226")


def test_the_dashboard_shows_all_of_the_queue_on_one_page(operator: Client) -> None:
    now = timezone.now()
    worker = rows.worker()
    rows.job(
        State.RUNNING,
        worker=worker.pk,
        task="shop.tasks.importing",
        progress={"done": 1, "total": 4},
    )
    rows.job(State.SCHEDULED, failures=1, attempts=1, task="shop.tasks.flaky")
    rows.job(State.DEAD, task="shop.tasks.broken", last_error="Boom: no")
    rows.job(queue="mail")
    Queue.objects.create(name="mail", paused_at=now, paused_by="bob")
    LeaderLease.objects.create(
        name="maintenance",
        holder=worker.pk,
        term=7,
        acquired_at=now,
        expires_at=now + timedelta(seconds=15),
    )
    Schedule.objects.create(name="nightly", task=rows.TASK, cron="0 3 * * *", next_run_at=now)
    minute = now.replace(second=0, microsecond=0) - timedelta(minutes=5)
    Minute.objects.create(at=minute, succeeded=311, failed=4, wait_p50=0.01, wait_p95=1.5)
    with CaptureQueriesContext(connection) as queries:
        shown = operator.get(DASHBOARD).content.decode()
    for text in ("tasks.importing", "tasks.flaky", "tasks.broken", "Boom: no", "paused by bob"):
        assert text in shown
    for text in ("led, term 7", "nightly", "311 succeeded", "<svg", 'd="M', 'value="25.0"'):
        assert text in shown
    frame = ("SAVEPOINT", "RELEASE SAVEPOINT", "SELECT set_config")  # the page's own transaction
    asked = [query for query in queries if not query["sql"].startswith(frame)]
    assert len(asked) <= 15


def test_the_live_part_refreshes_only_when_the_script_asks_for_it(operator: Client) -> None:
    shown = operator.get(f"{DASHBOARD}live/", headers={"HX-Request": "true"}).content.decode()
    assert 'hx-trigger="jq-tick from:body"' in shown
    assert "<html" not in shown


@pytest.mark.parametrize("address", ["queue/", "worker/", "worker/{worker}/"])
def test_other_pages_refresh_their_live_part_from_their_own_address(
    operator: Client, address: str
) -> None:
    address = f"/admin/jobqueue/{address.format(worker=rows.worker(queues=['mail']).pk)}"
    whole = operator.get(address).content.decode()
    assert f'hx-get="{address}" hx-trigger="jq-tick from:body"' in whole
    part = operator.get(address, headers={"HX-Request": "true"}).content.decode()
    assert part.startswith('<div id="jq-live"')
    assert "mail" in part
    assert "<html" not in part


def test_a_stopped_workers_page_does_not_refresh(operator: Client) -> None:
    report = {"completed": 41, "interrupted": 2, "returned": 1, "unrecorded": 0, "reason": "TERM"}
    gone = rows.worker(phase="STOPPED", stop_report=report)
    shown = operator.get(f"/admin/jobqueue/worker/{gone.pk}/").content.decode()
    assert "hx-get" not in shown
    for label, value in (("Completed", 41), ("Interrupted", 2), ("Returned", 1), ("Unrecorded", 0)):
        assert f"<dt>{label}</dt><dd>{value}</dd>" in shown


def test_a_queue_without_a_worker_says_so_on_every_screen_width(operator: Client) -> None:
    rows.worker(queues=["mail"])
    rows.job(queue="mail")
    assert "no worker serves it" not in operator.get(DASHBOARD).content.decode()
    rows.job(queue="reports")
    assert operator.get(DASHBOARD).content.decode().count("no worker serves it") == 1


def test_the_dashboard_of_an_empty_queue(operator: Client) -> None:
    shown = operator.get(DASHBOARD).content.decode()
    assert "No figures yet" in shown
    assert "No worker is running" in shown
    assert "No dead letters" in shown


@pytest.mark.spec("D126")
def test_numbers_inside_addresses_and_charts_do_not_follow_the_language(
    operator: Client, settings: Any
) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    settings.LANGUAGE_CODE = "de"
    job = rows.job(State.RUNNING, pk=1234567, progress={"done": 1, "total": 3})
    minute = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    Minute.objects.create(at=minute, succeeded=3, wait_p50=0.5, wait_p95=1.5)
    for address in (DASHBOARD, "/admin/jobqueue/job/", f"/admin/jobqueue/job/{job.pk}/"):
        shown = operator.get(address).content.decode()
        assert "1.234.567" not in shown
        assert "#1234567" in shown or "1234567" in shown
        assert 'value="33,3"' not in shown


@pytest.mark.parametrize("top", [0, 1, 3, 7, 12, 99, 100, 101, 12345])
def test_an_axis_ends_on_a_round_number_at_or_above_the_largest_value(top: int) -> None:
    end = charts._nice(top)
    assert end >= top
    assert f"{end:g}".rstrip("0")[:1] in {"1", "2", "5"}


def test_queues_are_paused_and_resumed_from_their_page(operator: Client) -> None:
    rows.job(queue="mail")
    address = "/admin/jobqueue/queue/mail/act/pause/"
    assert "No more jobs" in operator.post(address).content.decode()
    assert not Queue.objects.exists()
    answer = operator.post(address, {"confirmed": "1", "reason": "broken"}, follow=True)
    assert "Paused mail." in answer.content.decode()
    assert "paused by ann" in answer.content.decode()
    again = operator.post(address, {"confirmed": "1"}, follow=True)
    assert "The queue mail was paused already." in again.content.decode()
    answer = operator.post(
        "/admin/jobqueue/queue/mail/act/resume/", {"confirmed": "1"}, follow=True
    )
    assert "Resumed mail." in answer.content.decode()
    assert operator.post("/admin/jobqueue/queue/a%20b/act/pause/").status_code == 404


def test_a_schedules_page_previews_its_ticks_with_clock_changes_marked(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import UTC, datetime

    from jobqueue.admin import schedules

    schedule = Schedule.objects.create(
        name="nightly", task=rows.TASK, cron="30 12 * * *", timezone="Europe/Berlin"
    )
    monkeypatch.setattr(schedules, "database_time", lambda: datetime(2027, 3, 25, tzinfo=UTC))
    shown = operator.get(f"/admin/jobqueue/schedule/{schedule.pk}/").content.decode()
    assert "Sat 2027-03-27 12:30 CET" in shown
    assert "Sun 2027-03-28 12:30 CEST" in shown
    assert shown.count("the clocks change before this") == 1


def test_a_schedule_is_switched_and_run_from_its_page(
    operator: Client, operators_tasks: None
) -> None:
    from jobqueue.models import Job, JobEvent

    schedule = Schedule.objects.create(name="nightly", task=rows.TASK, args=[1], cron="0 3 * * *")
    address = f"/admin/jobqueue/schedule/{schedule.pk}/act/"
    for act, sentence in (
        ("disable", "Disabled nightly."),
        ("disable", "The schedule nightly was disabled already."),
        ("enable", "Enabled nightly."),
        ("run", "Enqueued as job"),
    ):
        answer = operator.post(f"{address}{act}/", {"confirmed": "1"}, follow=True)
        assert sentence in answer.content.decode()
    assert Job.objects.get().args == [1]
    kinds = JobEvent.objects.order_by("id").values_list("kind", flat=True)
    assert list(kinds) == ["disable", "enable", "run schedule"]
    Schedule.objects.update(task="shop.tasks.old", origin=Schedule.Origin.CODE)
    answer = operator.post(f"{address}run/", {"confirmed": "1"}, follow=True)
    assert "It cannot run" in answer.content.decode()
