"""Rows that must not exist are refused by the database itself, whoever writes them."""

import datetime as dt
import json
from typing import Any
from uuid import uuid4

import pytest
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import F
from django.utils import timezone

from jobqueue.models import Attempt, Job, LeaderLease
from jobqueue.states import FINAL, Outcome, State
from jobqueue.versions import UNDERSTANDS
from tests.web import rows

pytestmark = [pytest.mark.django_db, pytest.mark.spec("S3")]
HOLDER = ("worker", "lease_token", "lease_expires_at", "claimed_at")


def refused(job: Job, **changes: object) -> bool:
    """Whether the database refuses this change."""
    try:
        with transaction.atomic():
            Job.objects.filter(pk=job.pk).update(**changes)
    except IntegrityError:
        return True
    return False


@pytest.mark.spec("D16")
@pytest.mark.parametrize("column", HOLDER)
def test_a_running_row_has_all_of_its_holder(column: str) -> None:
    assert refused(rows.job(State.RUNNING), **{column: None})


@pytest.mark.spec("D16")
@pytest.mark.parametrize("state", [state for state in State if state != State.RUNNING])
@pytest.mark.parametrize("column", [*HOLDER, "not_ending_since"])
def test_no_other_row_has_any_of_it(state: State, column: str) -> None:
    value = uuid4() if column in ("worker", "lease_token") else timezone.now()
    assert refused(rows.job(state), **{column: value})


@pytest.mark.parametrize("state", State)
def test_a_row_is_final_if_and_only_if_it_has_its_finish(state: State) -> None:
    job = rows.job(state)
    finish = None if state in FINAL else timezone.now()
    assert refused(job, finished_at=finish)


@pytest.mark.parametrize("state", ["", "running", "PAUSED"])
def test_a_state_outside_the_table_does_not_exist(state: str) -> None:
    assert refused(rows.job(), state=state)


@pytest.mark.parametrize(
    "change",
    [
        {"priority": 101},
        {"priority": -101},
        {"attempts": -1},
        {"failures": -1},
        {"failures": 1},  # more than its attempts
        {"max_attempts": 0},
    ],
)
def test_numbers_outside_their_bounds_are_refused(change: dict[str, int]) -> None:
    assert refused(rows.job(), **change)


@pytest.mark.parametrize("column", ["run_at", "hold_until", "expires_at", "parked_at"])
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "10000-01-01", "0001-01-01 BC"])
def test_a_moment_that_python_cannot_read_is_refused(column: str, moment: str) -> None:
    job = rows.job()
    with pytest.raises(IntegrityError), connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE jobqueue_job SET {column} = %s::timestamptz WHERE id = %s", [moment, job.pk]
        )


def test_more_attempts_than_allowed_by_sql_is_a_row_that_can_be_read() -> None:
    job = rows.job(attempts=9, failures=9, max_attempts=2)
    assert str(Job.objects.get(pk=job.pk)).endswith(f"#{job.pk}")


@pytest.mark.spec("S7")
def test_an_attempt_number_is_never_there_twice() -> None:
    job = rows.job()
    rows.attempt(job, 1)
    with pytest.raises(IntegrityError):
        rows.attempt(job, 1)


def test_an_outcome_outside_the_words_does_not_exist() -> None:
    with pytest.raises(IntegrityError):
        rows.attempt(rows.job(), 1, outcome="BROKEN")


def test_every_outcome_and_state_fits_its_column() -> None:
    for number, outcome in enumerate(Outcome, 1):
        rows.attempt(rows.job(), number, outcome)
    assert Attempt.objects.count() == len(Outcome)
    for state in State:
        rows.job(state)


def test_a_leader_lease_is_held_whole_or_empty() -> None:
    LeaderLease.objects.create(name="empty", term=3)
    with pytest.raises(IntegrityError):
        LeaderLease.objects.create(name="half", term=3, holder=uuid4())


@pytest.mark.spec("S8")
def test_no_key_leads_from_a_job_to_its_worker() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid IN "
            "('jobqueue_job'::regclass, 'jobqueue_attempt'::regclass)"
        )
        assert cursor.fetchall() == []


@pytest.mark.spec("S10", "S11")
def test_lease_columns_stand_in_no_index_and_the_hot_indexes_are_partial() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'jobqueue_job'")
        definitions = [definition for (definition,) in cursor.fetchall()]
    assert not [text for text in definitions if "lease" in text or "claimed_at" in text]
    whole = [text for text in definitions if " WHERE " not in text]
    assert len(whole) == 1  # the primary key
    [ready] = [text for text in definitions if "jobqueue_job_claimable" in text]
    assert "(queue, priority DESC, run_at, id) WHERE " in ready
    for condition in ("(state)::text = 'READY'::text", "NOT suspect", f"needs <= {UNDERSTANDS}"):
        assert condition in ready


@pytest.mark.spec("S10")
def test_storage_leaves_room_for_renewals_and_lets_vacuum_follow() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'jobqueue_job'")
        options = cursor.fetchone()[0]
    assert "fillfactor=80" in options
    assert "autovacuum_vacuum_scale_factor=0.01" in options


def test_the_longest_queue_name_fits_and_a_longer_one_does_not() -> None:
    rows.job(queue="q" * 63)
    with pytest.raises(DataError), transaction.atomic():
        rows.job(queue="q" * 64)


@pytest.mark.spec("S12")
def test_ready_jobs_of_a_queue_come_by_priority_then_due_time_then_id() -> None:
    now = timezone.now()
    early, late = now - dt.timedelta(hours=1), now
    a, b, c, d, e = (
        rows.job(priority=p, run_at=at)
        for p, at in ((0, late), (0, early), (1, late), (-1, early), (0, early))
    )
    order = Job.objects.order_by("queue", F("priority").desc(), "run_at", "id")
    assert [job.pk for job in order] == [c.pk, b.pk, e.pk, a.pk, d.pk]


@pytest.mark.parametrize("options", [[], None, "x", 5])
def test_options_that_are_no_object_are_refused(options: Any) -> None:
    job = rows.job()
    with pytest.raises(IntegrityError), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobqueue_job SET options = %s WHERE id = %s", [json.dumps(options), job.pk]
        )
