"""Imports in a real worker process, with real signals."""

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from jobqueue import operations
from jobqueue.models import Attempt, Job, Worker
from project.contacts import sample_data
from project.contacts.models import Contact, Import, Outcome
from project.contacts.requests import request_import, request_sample, request_webhook
from tests.children import Children, database_url, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

ROWS = 60_000  # some seconds of work


@pytest.fixture
def children(transactional_db: None, tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path) as started:
        yield started


def import_of(lines: list[list[str]]) -> Import:
    return request_import("big.csv", sample_data.as_csv(lines))


@contextlib.contextmanager
def halted_at(email: str) -> Iterator[None]:
    """Have an import wait at this contact, which somebody else is just adding and takes back at
    the end."""
    other = Import.objects.create(name="other.csv", content=b"", receipt_to="x@x.example")
    with psycopg.connect(database_url()) as connection:
        connection.execute(
            "INSERT INTO contacts_contact (email, name, company, phone, source_id) "
            "VALUES (%s, '', '', '', %s)",
            [email, other.pk],
        )
        yield
        connection.rollback()


def progress_of(row: Import) -> tuple[str, int]:
    progress = job_of(row).progress or {}
    return str(progress.get("note")), int(progress.get("done", 0))


def job_of(row: Import) -> Job:
    return Job.objects.get(pk=row.job_id)


def is_importing(row: Import) -> bool:
    """Whether the worker has reported contacts that it has written, and not yet all."""
    note, done = progress_of(row)
    return note == "importing" and 0 < done < ROWS


def has_ended(row: Import) -> bool:
    return job_of(row).is_final


@pytest.mark.spec("S217")
def test_an_import_and_its_receipt_are_done_once(children: Children) -> None:
    children.worker()
    row = request_sample(sample_data.GOOD)
    wait_until(lambda: children.letters())
    wait_until(lambda: not Job.objects.exclude(state=Job.State.SUCCEEDED).exists())
    row.refresh_from_db()
    assert (row.outcome, row.added, Contact.objects.count()) == (Outcome.IMPORTED, 4000, 4000)
    (letter,) = children.letters()
    assert "Subject: contacts.csv: imported" in letter
    assert f"Message-ID: <import-{row.pk}.receipt@contacts.example>" in letter
    # Both are functions in handler threads: what is logged about them is complete nevertheless.
    (worker,) = Worker.objects.all()
    events = [json.loads(line) for line in children.log("runworker") if line.startswith("{")]
    ended = [event for event in events if event["event"] == "job_succeeded"]
    assert [(event["queue"], event["attempt"], event["worker"]) for event in ended] == [
        ("imports", 1, str(worker.pk)),
        ("mail", 1, str(worker.pk)),
    ]


def test_a_refused_file_succeeds_as_a_job_and_is_not_tried_again(children: Children) -> None:
    children.worker()
    row = request_sample(sample_data.FAULTY)
    wait_until(lambda: has_ended(row))
    row.refresh_from_db()
    assert (row.outcome, row.fault_count) == (Outcome.REFUSED, 7)
    assert job_of(row).state == Job.State.SUCCEEDED
    assert not Contact.objects.exists()


def test_a_cancel_in_the_middle_stops_it_soon_and_undoes_what_was_written(
    children: Children,
) -> None:
    children.worker()
    row = import_of(sample_data.lines(ROWS))
    wait_until(lambda: is_importing(row))
    operations.cancel(job_of(row), by="a test")
    wait_until(lambda: has_ended(row), seconds=3)  # a second, and what a busy machine adds
    assert job_of(row).state == Job.State.CANCELLED
    assert Attempt.objects.get(job=row.job_id).outcome == "CANCELLED"
    assert not Contact.objects.exists()
    row.refresh_from_db()
    assert row.outcome == Outcome.OPEN


@pytest.mark.spec("S9")
def test_two_signals_in_the_middle_give_it_back_and_the_next_start_finishes_it(
    children: Children,
) -> None:
    worker = children.worker()
    lines = sample_data.lines(3_000)
    with halted_at(lines[2_700][1]):
        row = import_of(lines)
        wait_until(lambda: progress_of(row) == ("importing", 2_500))
        worker.send_signal(signal.SIGINT)
        # Two signals of a kind that come at once are one to the operating system.
        wait_until(lambda: Worker.objects.filter(phase="DRAINING").exists())
        worker.send_signal(signal.SIGINT)
        assert worker.wait(15) == 0
    job = job_of(row)
    assert (job.state, job.failures) == (Job.State.READY, 0)
    assert list(Attempt.objects.values_list("outcome", flat=True)) == ["INTERRUPTED"]
    assert not Contact.objects.exists()

    children.worker()
    wait_until(lambda: children.letters())
    row.refresh_from_db()
    # Added, not updated: nothing had been left behind by the first attempt.
    assert (row.rows, row.added, Contact.objects.count()) == (3_000, 3_000, 3_000)
    assert job_of(row).state == Job.State.SUCCEEDED
    assert Job.objects.filter(queue="mail").count() == 1
    # Each process is a worker of its own: what the first one held is nothing to the second.
    first, second = Attempt.objects.filter(job=row.job_id).order_by("number")
    assert first.worker != second.worker


@pytest.mark.spec("S218")
def test_the_partners_moods_lead_to_retries_and_to_dead_letters(children: Children) -> None:
    children.worker()
    ids = {plan: request_webhook(plan).job_id for plan in ("well", "flaky", "busy", "gone")}

    def all_have_ended() -> bool:
        operations.run_now(Job.objects.filter(state=Job.State.SCHEDULED))  # their waits are seconds
        return not Job.objects.filter(finished_at=None).exists()

    wait_until(all_have_ended, every=0.1)
    jobs = {plan: Job.objects.get(pk=job_id) for plan, job_id in ids.items()}
    assert {plan: (job.state, job.attempts) for plan, job in jobs.items()} == {
        "well": (Job.State.SUCCEEDED, 1),
        "flaky": (Job.State.SUCCEEDED, 3),
        "busy": (Job.State.SUCCEEDED, 2),
        "gone": (Job.State.DEAD, 1),
    }
    assert "410 Gone" in jobs["gone"].last_error
    logged = [json.loads(line) for line in children.log("runworker") if line.startswith("{")]
    levels = [
        (e["job"], e["event"], e["level"]) for e in logged if e["level"] in ("warning", "error")
    ]
    assert sorted(levels) == sorted(
        [
            *[(ids["flaky"], "job_retry_scheduled", "warning")] * 2,
            (ids["busy"], "job_retry_scheduled", "warning"),
            (ids["gone"], "job_dead", "error"),
        ]
    )
