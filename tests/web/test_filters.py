"""A restriction that cannot be read is refused; it never means more jobs."""

from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from jobqueue.admin import perform
from jobqueue.admin.filters import Filters, UnreadableFilterError
from jobqueue.models import BulkOrder, Job
from jobqueue.states import State
from tests.web import rows

pytestmark = pytest.mark.django_db
UNREADABLE = [
    "worker=nobody",
    "worker=12345678",
    "state=GONE",
    "state=dead",
    "age=over-1y",
    "statee=DEAD",
    "state__exact=DEAD",
    "queue=a&queue=b",
    "queue=%00",
    "task=" + "x" * 201,
    "q=a%0Ab",
]


@pytest.mark.parametrize("query", UNREADABLE)
def test_an_address_that_cannot_be_read_shows_no_job_and_offers_no_act(
    operator: Client, query: str
) -> None:
    rows.job(State.DEAD)
    answer = operator.get(f"/admin/jobqueue/job/?{query}&tenant=")
    shown = answer.content.decode()
    assert answer.status_code == 400
    assert "Nothing is shown" in shown
    assert "/act/" not in shown
    assert 'name="job"' not in shown


@pytest.mark.parametrize("query", UNREADABLE)
@pytest.mark.parametrize("confirmed", [{}, {"confirmed": "1"}])
def test_a_form_with_such_a_filter_does_nothing(
    operator: Client, query: str, confirmed: dict[str, str]
) -> None:
    rows.job(State.DEAD)
    given = {"scope": "all", "filter": query, "as_of": timezone.now().isoformat()}
    given |= {"nonce": uuid4().hex, **confirmed}
    answer = operator.post("/admin/jobqueue/job/act/delete/", given)
    assert answer.status_code == 400
    assert "Nothing was done." in answer.content.decode()
    assert (Job.objects.count(), BulkOrder.objects.count()) == (1, 0)


NOW = timezone.now().isoformat()
FULL = {"scope": "all", "filter": "state=DEAD", "nonce": "0" * 32, "as_of": NOW, "confirmed": "1"}
HAND_MADE: list[dict[str, Any]] = [
    {**FULL, "scope": "ALL"},
    {**FULL, "scope": ["ticked", "all"]},
    {name: value for name, value in FULL.items() if name != "filter"},
    {**FULL, "filter": ["state=DEAD", ""]},
    {name: value for name, value in FULL.items() if name != "as_of"},
    {**FULL, "as_of": "yesterday"},
    {**FULL, "as_of": "2026-01-01T00:00:00"},
    {**FULL, "as_of": "0001-01-01T00:00:00+14:00"},
    {name: value for name, value in FULL.items() if name != "nonce"},
    {**FULL, "nonce": "n1"},
    {**FULL, "filter": "text=secret"},
    {**FULL, "filter": "&".join(f"a{n}=1" for n in range(2_000))},
    {"confirmed": "1", "job": ["1", "x"]},
    {"confirmed": "1", "job": [str(2**63)]},
    {"confirmed": "1", "job": [str(n) for n in range(perform.TICKED_AT_MOST + 1)]},
]


@pytest.mark.parametrize("given", HAND_MADE)
def test_hand_made_and_old_forms_are_refused(
    operator: Client, given: dict[str, Any], settings: Any
) -> None:
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 1_500
    rows.job(State.DEAD)
    answer = operator.post("/admin/jobqueue/job/act/delete/", given)
    assert answer.status_code == 400
    assert (Job.objects.count(), BulkOrder.objects.count()) == (1, 0)


def test_a_moment_to_come_means_now(operator: Client) -> None:
    rows.job(State.DEAD)
    later = {**FULL, "as_of": "9999-12-31T00:00:00+00:00"}
    operator.post("/admin/jobqueue/job/act/retry/", later)
    assert BulkOrder.objects.get().moment <= timezone.now()


def test_a_worker_is_known_by_id_by_the_end_of_its_id_and_by_name(operator: Client) -> None:
    worker = rows.worker(name="mailer")
    nameless = rows.worker(name="", hostname="web-2", pid=77)
    mine = rows.job(State.RUNNING, worker=worker.pk)
    its = rows.job(State.RUNNING, worker=nameless.pk)
    for text, job in (
        (str(worker.pk), mine),
        (str(worker.pk)[-8:], mine),
        (str(worker.pk)[-8:].upper(), mine),
        ("mailer", mine),
        ("web-2:77", its),
    ):
        filters = Filters.read({"worker": text})
        found = filters.selection(timezone.now()).queryset()
        assert [row.pk for row in found] == [job.pk]
        shown = operator.get("/admin/jobqueue/job/", {"worker": text}).content.decode()
        assert f'name="job" value="{job.pk}"' in shown
        assert shown.count('name="job" value=') == 1


def test_the_page_that_asks_repeats_the_filter_in_words(operator: Client) -> None:
    worker = rows.worker(name="mailer")
    rows.job(State.RUNNING, queue="mail", worker=worker.pk)
    query = f"state=RUNNING&queue=mail&worker=mailer&age=under-1d&q=receipt&task={rows.TASK}"
    given = {"scope": "all", "filter": query}
    shown = operator.post("/admin/jobqueue/job/act/cancel/", given).content.decode()
    for words in (
        "<dt>State</dt><dd>Running</dd>",
        "<dt>Queue</dt><dd>mail</dd>",
        f"<dt>Worker</dt><dd>{worker.pk}</dd>",
        "<dt>Age</dt><dd>newer than a day</dd>",
        f"<dt>Task</dt><dd>{rows.TASK}</dd>",
        "<dt>Task contains “receipt”</dt>",
        "<strong>1 job</strong>",
    ):
        assert words in shown
    plain = operator.post("/admin/jobqueue/job/act/cancel/", {"scope": "all", "filter": ""})
    assert "<dt>Filter</dt><dd>all jobs</dd>" in plain.content.decode()


def test_a_task_and_a_part_of_one_both_restrict() -> None:
    rows.job(State.DEAD)
    filters = Filters.read({"task": rows.TASK, "q": "another"})
    assert filters.tasks() == []
    assert not filters.selection(timezone.now()).queryset().exists()


def test_a_search_by_text_is_no_filter_for_an_act() -> None:
    with pytest.raises(UnreadableFilterError, match="select the jobs"):
        Filters.read({"text": "x"}).selection(timezone.now())
