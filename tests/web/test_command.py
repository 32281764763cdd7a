import json
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from jobqueue.insight import doctor
from jobqueue.models import Job, LeaderLease, Queue
from jobqueue.states import State
from jobqueue.versions import UNDERSTANDS
from tests.web import rows

pytestmark = [pytest.mark.spec("S229"), pytest.mark.django_db]


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code and what was printed."""
    out = StringIO()
    try:
        call_command("jobqueue", *arguments, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, out.getvalue()


def test_status_is_read_by_people_and_by_scripts() -> None:
    rows.job(queue="mail")
    worker = rows.worker()
    rows.job(State.RUNNING, worker=worker.pk)
    code, text = run("status")
    assert code == 0
    assert "queue mail: 1 ready" in text
    assert "worker worker-1: 1/10 slots, RUNNING" in text
    facts = json.loads(run("status", "--json")[1])
    assert facts["states"]["READY"] == {"value": 1, "exact": True}
    assert [q["name"] for q in facts["queues"]] == ["default", "imports", "mail"]
    assert facts["workers"][0]["used"] == 1


def test_django_s_own_options_may_stand_at_the_end() -> None:
    assert run("pause", "mail", "-v", "0", "--no-color", "--traceback")[0] == 0
    for place in (0, 1):
        words = ["status"]
        words[place:place] = ["--settings", "project.settings"]
        assert run(*words)[0] == 0


def test_missing_tables_are_one_line_that_names_the_command() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobqueue_job RENAME TO away")
    said = "The tables of jobqueue are missing or old: run `manage.py migrate`."
    assert run("cancel", "1") == (1, said)


def test_queues_are_paused_and_resumed_and_a_repeat_is_reported() -> None:
    assert run("pause", "mail", "default")[0] == 0
    assert Queue.objects.filter(paused_by="manage.py").count() == 2
    code, text = run("pause", "mail")
    assert (code, text) == (3, "pause: 0 changed; 1 SAME\n")
    assert run("resume", "mail")[0] == 0


def test_jobs_are_cancelled_and_retried_by_id_and_by_filter() -> None:
    job, other = rows.job(), rows.job(queue="mail")
    assert run("cancel", str(job.pk), "--by", "ann")[0] == 0
    assert run("cancel", str(job.pk)) == (3, "cancel: 0 changed; 1 CANCELLED\n")
    assert (
        json.loads(run("retry", "--state", "CANCELLED", "--json")[1])["results"][0]["changed"] == 1
    )
    assert run("cancel", "--queue", "mail")[0] == 0
    other.refresh_from_db()
    assert other.state == State.CANCELLED
    assert Job.objects.filter(state=State.READY).count() == 1


def test_a_verb_without_any_filter_needs_all() -> None:
    rows.job()
    code, text = run("cancel")
    assert (code, "--all" in text) == (2, True)
    assert run("cancel", "1", "--all")[0] == 2
    assert run("cancel", "--all")[0] == 0


@pytest.mark.parametrize(
    "arguments", [["pause", "no spaces"], ["cancel", "x"], ["retry", "9" * 30], ["prune", "-1"], []]
)
def test_bad_arguments_are_one_line(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("jobqueue", *arguments)
    assert "\n" not in str(refused.value)


def test_prune_deletes_what_is_past_its_retention_and_nothing_else() -> None:
    old = timezone.now() - timedelta(days=8)
    for state in (State.SUCCEEDED, State.CANCELLED, State.DEAD):
        rows.attempt(rows.job(state, finished_at=old))
        rows.job(state)
    assert run("prune") == (0, "prune: 2 changed\n")
    assert run("prune", "--state", "DEAD", "--older-than", "0") == (0, "prune: 2 changed\n")
    assert Job.objects.count() == 2


@pytest.mark.spec("S230")
def test_the_doctor_names_each_ailment_with_its_remedy() -> None:
    rows.job(queue="mail")
    rows.job(State.SCHEDULED, task="shop.tasks.old", parked_at=timezone.now())
    Queue.objects.create(name="mail", paused_at=timezone.now(), paused_by="ann")
    rows.job(needs=UNDERSTANDS + 1)
    rows.worker(name="gone", last_seen_at=timezone.now() - timedelta(minutes=5))
    code, text = run("doctor")
    assert code == 3
    for words in (
        "No worker is running.",
        "gone has been silent for 3",
        "1 jobs wait in 'mail', which no running worker serves.",
        "'mail' is paused by ann",
        "shop.tasks.old are parked",
        "1 jobs need newer code than any running worker has.",
    ):
        assert words in text
    facts = json.loads(run("doctor", "--json")[1])
    assert {finding["level"] for finding in facts["findings"]} == {"warning", "note"}


@pytest.mark.spec("S230")
@pytest.mark.parametrize(
    ("wake", "remedy"),
    [
        ("", ""),  # before the first beat
        ("polling: no notification yet", ""),
        ("polling: reconnecting", ""),
        ("polling: NOTIFY is off", ""),
        ("notified", ""),
        (
            "polling: notifications do not arrive (is there a pooler in between?)",
            "not a transaction pooler's",
        ),
        ("polling: connection refused", "Its log says more."),
    ],
)
def test_only_notifications_that_do_not_arrive_are_blamed_on_a_pooler(
    wake: str, remedy: str
) -> None:
    rows.worker(wake=wake)
    text = run("doctor")[1]
    assert ("hears no notifications" in text) == bool(remedy)
    assert remedy in text


@pytest.mark.spec("S230")
@pytest.mark.parametrize(
    ("seconds", "heard", "leads"),
    [(10, 1, True), (-1, 1, False), (86_400, 1, False), (10, 40, False), (10, None, False)],
)
def test_the_doctor_believes_no_lease_that_the_workers_do_not_believe(
    seconds: int, heard: int | None, leads: bool
) -> None:
    now, holder = timezone.now(), uuid4()
    rows.worker()
    if heard is not None:
        rows.worker(id=holder, last_seen_at=now - timedelta(seconds=heard))
    LeaderLease.objects.create(
        name="maintenance",
        holder=holder,
        term=1,
        acquired_at=now,
        expires_at=now + timedelta(seconds=seconds),
    )
    assert ("There is no leader" in run("doctor")[1]) is not leads
    facts = json.loads(run("status", "--json")[1])
    assert facts["leader"]["holder"] == (str(holder) if leads else None)
    assert [row["leads"] for row in facts["workers"] if row["leads"]] == [True] * leads


@pytest.mark.spec("S230")
def test_the_doctor_counts_the_connections_of_all_workers_in_health(settings: Any) -> None:
    settings.JOBQUEUE = {"HEARTBEAT_SECONDS": 90, "LEASE_SECONDS": 600}
    seen = timezone.now() - timedelta(seconds=85)
    rows.worker(last_seen_at=seen, concurrency=5_000, supervisor="s")
    # Two per slot, five and a second one for claims, two of a leader, one of the supervisor.
    assert "1 workers may open 10009 connections" in run("doctor")[1]


@pytest.mark.spec("S230")
def test_the_doctor_compares_the_platforms_grace(settings: Any) -> None:
    code, text = run("doctor", "--grace", "10")
    assert code == 1
    assert "may need 27 s" in text
    assert not [f for f in doctor.examine(30) if f.level == doctor.ERROR]
    settings.JOBQUEUE = {"LEASE_SECONDS": 1}
    assert run("doctor")[0] == 1


def test_wrong_settings_are_one_line(settings: Any) -> None:
    settings.JOBQUEUE = {"LEASE": 1}
    code, text = run("status")
    assert code == 1
    assert text.startswith("JOBQUEUE['LEASE']: is not a setting")
    assert "\n" not in text


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_misspelt_queue_among_others_changes_nothing(verb: str) -> None:
    code, said = run(verb, "mail", "nosuch")
    assert code == 2
    assert "'nosuch'" in said
    assert not Queue.objects.exists()
