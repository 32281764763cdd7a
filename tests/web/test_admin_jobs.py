from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobqueue.models import Job, JobEvent
from jobqueue.states import Outcome, State
from tests.web import rows

LIST = "/admin/jobqueue/job/"


def page(client: Client, address: str, **data: Any) -> str:
    response = client.get(address, data)
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, verb: str, **data: Any) -> Any:
    return client.post(reverse("admin:jobqueue_job_act", args=[verb]), data)


@pytest.mark.spec("S226")
@pytest.mark.parametrize("state", list(State))
def test_each_tab_shows_the_jobs_of_its_state(operator: Client, state: State) -> None:
    for each in State:
        rows.job(each)
    shown = page(operator, LIST, state=state)
    assert shown.count('name="job"') == 1
    assert page(operator, LIST).count('name="job"') == len(State)


@pytest.mark.spec("S226")
def test_the_retrying_tab_shows_scheduled_jobs_that_have_failed(operator: Client) -> None:
    rows.job(State.SCHEDULED)
    tried = rows.job(State.SCHEDULED, attempts=1, failures=1, last_error="Boom: no")
    shown = page(operator, LIST, state="RETRYING")
    assert f"#{tried.pk}" in shown
    assert shown.count('name="job"') == 1
    assert "Boom: no" in shown


@pytest.mark.spec("S226")
def test_filters_narrow_the_list(operator: Client) -> None:
    holder = uuid4()
    rows.job(State.DEAD, queue="mail", tenant="acme")
    rows.job(State.DEAD, task="shop.tasks.old", finished_at=timezone.now() - timedelta(days=2))
    rows.job(State.RUNNING, worker=holder)
    rows.job(State.READY, queue="mail", task="shop.tasks.old")
    for filters, expected in (
        ({"queue": "mail"}, 2),
        ({"queue": "mail", "state": "READY"}, 1),
        ({"task": "shop.tasks.old"}, 2),
        ({"task": "shop.tasks.old", "state": "DEAD"}, 1),
        ({"task": "shop.tasks.old", "state": "DEAD", "queue": "mail"}, 0),
        ({"tenant": "acme"}, 1),
        ({"worker": str(holder)}, 1),
        ({"state": "DEAD", "age": "under-1d"}, 1),
        ({"state": "DEAD", "age": "over-1d"}, 1),
        ({"age": "over-1d"}, 1),
        ({"q": "old"}, 2),
        ({"q": "nothing.like.it"}, 0),
        ({"state": "nonsense", "age": "7", "worker": "x", "after": "garbage"}, 4),
    ):
        assert page(operator, LIST, **filters).count('name="job"') == expected, filters


@pytest.mark.spec("S226")
def test_a_search_by_id_finds_the_one_job(operator: Client) -> None:
    job = rows.job(pk=2**53 + 5)
    rows.job()
    assert page(operator, LIST, q=f"#{job.pk}").count('name="job"') == 1
    assert page(operator, LIST, q="9" * 30).count('name="job"') == 0


@pytest.mark.spec("S226")
@pytest.mark.parametrize("state", ["", *State])
def test_pages_go_on_where_the_last_one_ended(
    operator: Client, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobqueue.admin import joblist
    from jobqueue.admin.filters import Filters

    now = timezone.now()
    for position in range(25):
        kind = State(state) if state else list(State)[position % 7]
        rows.job(kind, queue=f"q{position % 3}", priority=position % 4, run_at=now)
    seen: list[int] = []
    after = ""
    for _ in range(4):
        found = joblist.fetch(Filters(state=state), after, size=7)
        seen += [job.pk for job in found.jobs]
        after = found.next
    assert after == ""
    assert len(seen) == len(set(seen)) == 25


@pytest.mark.django_db
def test_a_filter_without_an_index_looks_at_a_window_and_offers_to_search_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobqueue.admin import joblist
    from jobqueue.admin.filters import Filters

    monkeypatch.setattr(joblist, "WINDOW", 10)
    old = rows.job(State.SUCCEEDED, queue="mail")
    for _ in range(15):
        rows.job(State.SUCCEEDED)
    first = joblist.fetch(Filters(state="SUCCEEDED", queue="mail"))
    assert (first.jobs, first.truncated, bool(first.search_on)) == ([], True, True)
    second = joblist.fetch(Filters(state="SUCCEEDED", queue="mail"), first.search_on)
    assert [job.pk for job in second.jobs] == [old.pk]
    assert not second.truncated


@pytest.mark.spec("S226", "S228")
def test_text_is_searched_in_arguments_and_errors_but_never_finds_secrets(
    operator: Client,
) -> None:
    rows.job(args=["blue whale"])
    rows.job(kwargs={"password": "blue submarine"})
    rows.job(State.DEAD, last_error="Sky: blue")
    shown = page(operator, LIST, text="blue")
    assert shown.count('name="job"') == 2
    assert "newest 10,000" in shown
    assert page(operator, LIST, text="submarine").count('name="job"') == 0
    assert page(operator, LIST, text="100%_").count('name="job"') == 0


@pytest.mark.spec("S226", "S228")
def test_a_jobs_page_tells_its_story(operator: Client) -> None:
    job = rows.job(
        State.DEAD,
        attempts=2,
        failures=2,
        reason="attempts spent",
        kwargs={"order": 7, "card_number": "4111111111111111", "note": "4111 1111 1111 1111"},
        last_error="ValueError: bad",
    )
    rows.attempt(job, 1, Outcome.LOST, recorded_by="leader", late_outcome="SUCCEEDED")
    rows.attempt(job, 2, error_class="ValueError", error_message="bad", traceback="Traceback …")
    JobEvent.objects.create(job=job.pk, kind="retry", actor="bob", note="fixed the feed")
    shown = page(operator, f"{LIST}{job.pk}/")
    for text in ("attempts spent", "Attempt 1: Lost", "recorded by the leader", "ValueError"):
        assert text in shown
    for text in ("by bob", "fixed the feed", "refused, the lease was gone", "Traceback …"):
        assert text in shown
    assert "4111" not in shown
    assert "hx-trigger" not in shown  # nothing will change any more


def test_a_jobs_page_knows_tasks_that_no_code_knows_and_ids_that_are_gone(
    operator: Client,
) -> None:
    job = rows.job(task="shop.tasks.old")
    assert "shop.tasks.old" in page(operator, f"{LIST}{job.pk}/")
    for pk in (10**12, 2**63, 10**30):
        assert operator.get(f"{LIST}{pk}/").status_code == 404


@pytest.mark.spec("S226")
def test_large_values_are_cut_or_not_even_read(operator: Client) -> None:
    import random

    noise = "".join(chr(random.randint(33, 0xD7FF)) for _ in range(400_000))
    job = rows.job(State.DEAD, args=["x" * 50_000], kwargs={"blob": noise}, last_error="e" * 90_000)
    rows.attempt(job, error_class="E", error_message="m" * 90_000, traceback="t" * 900_000)
    shown = page(operator, f"{LIST}{job.pk}/")
    assert len(shown) < 100_000
    assert "Too large to show" in shown
    assert len(page(operator, LIST)) < 100_000


@pytest.mark.spec("S227")
def test_an_act_asks_first_and_then_does_logs_and_answers(operator: Client) -> None:
    dead, done = rows.job(State.DEAD), rows.job(State.SUCCEEDED)
    asked = act(operator, "retry", job=[dead.pk, done.pk])
    assert asked.status_code == 200
    assert "2 jobs" in asked.content.decode()
    dead.refresh_from_db()
    assert dead.state == State.DEAD
    answer = operator.post(
        "/admin/jobqueue/job/act/retry/",
        {"job": [dead.pk, done.pk], "confirmed": "1", "reason": "fixed", "next": f"{LIST}?q=7"},
        follow=True,
    )
    assert answer.redirect_chain == [(f"{LIST}?q=7", 302)]
    assert "Retried 1 job; 1 was left alone: it is Succeeded." in answer.content.decode()
    dead.refresh_from_db()
    assert dead.state == State.READY
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (str(dead.pk), "retry: fixed")
    assert JobEvent.objects.get().actor == "ann"


@pytest.mark.spec("S227", "S228")
@pytest.mark.parametrize("method", ["get", "head", "put", "delete", "options"])
def test_acts_are_refused_by_any_method_but_post(operator: Client, method: str) -> None:
    job = rows.job(State.DEAD)
    address = f"/admin/jobqueue/job/act/retry/?job={job.pk}&confirmed=1"
    assert getattr(operator, method)(address).status_code == 405
    job.refresh_from_db()
    assert job.state == State.DEAD


@pytest.mark.spec("S227")
def test_acts_are_refused_without_a_csrf_token(operator: Client) -> None:
    job = rows.job(State.DEAD)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    answer = act(strict, "retry", job=job.pk, confirmed="1")
    assert answer.status_code == 403
    job.refresh_from_db()
    assert job.state == State.DEAD


@pytest.mark.spec("S227")
def test_a_second_click_on_an_old_page_does_not_retry_again(operator: Client) -> None:
    job = rows.job(State.DEAD)
    shown = timezone.now().isoformat()
    for _ in range(2):
        act(operator, "retry", job=job.pk, confirmed="1", as_of=shown)
        Job.objects.update(state=State.DEAD, finished_at=timezone.now())
    assert JobEvent.objects.filter(kind="retry").count() == 1


@pytest.mark.spec("S227")
def test_priority_and_queue_are_checked_by_the_form(operator: Client) -> None:
    job = rows.job()
    refused = act(operator, "priority", job=job.pk, confirmed="1", priority="101")
    assert refused.status_code == 200
    assert act(operator, "move", job=job.pk, confirmed="1", queue="a b").status_code == 200
    assert act(operator, "priority", job=job.pk, confirmed="1", priority="9").status_code == 302
    assert act(operator, "move", job=job.pk, confirmed="1", queue="mail").status_code == 302
    job.refresh_from_db()
    assert (job.priority, job.queue) == (9, "mail")


@pytest.mark.spec("S227")
def test_all_that_match_are_acted_on_without_ticking(operator: Client) -> None:
    for _ in range(60):
        rows.job(State.DEAD, queue="mail")
    rows.job(State.DEAD)
    form = {"scope": "all", "filter": "state=DEAD&queue=mail"}
    assert "60 jobs" in act(operator, "retry", **form).content.decode()
    act(operator, "retry", **form, confirmed="1")
    assert Job.objects.filter(state=State.READY).count() == 60


@pytest.mark.spec("S227")
def test_a_cancel_by_htmx_answers_with_the_live_part(operator: Client) -> None:
    job = rows.job(State.RUNNING)
    answer = operator.post(
        "/admin/jobqueue/job/act/cancel/",
        {"job": job.pk, "confirmed": "1"},
        headers={"HX-Request": "true"},
    )
    shown = answer.content.decode()
    assert "Cancelling…" in shown
    assert "asked to stop" in shown
    assert "<html" not in shown


@pytest.mark.spec("S228")
def test_no_act_leads_to_another_site(operator: Client) -> None:
    job = rows.job(State.DEAD)
    for evil in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
        answer = act(operator, "retry", job=job.pk, confirmed="1", next=evil)
        assert answer["Location"] == LIST


@pytest.mark.spec("S228")
def test_pages_refuse_frames_and_caches(operator: Client) -> None:
    answer = operator.get(LIST)
    assert answer["X-Frame-Options"] == "DENY"
    assert "no-store" in answer["Cache-Control"]


def test_moments_are_shown_in_the_browsers_zone(operator: Client) -> None:
    job = rows.job(State.SCHEDULED, run_at="2027-07-01T12:00:00Z")
    operator.cookies["jobqueue_zone"] = "Europe%2FBerlin"
    shown = page(operator, f"{LIST}{job.pk}/")
    assert "2027-07-01 14:00:00 CEST" in shown
    assert "Times are in Europe/Berlin" in shown
    operator.cookies["jobqueue_zone"] = "../../etc/passwd"
    assert "2027-07-01 12:00:00 UTC" in page(operator, f"{LIST}{job.pk}/")


@pytest.mark.spec("S226")
def test_workers_and_leases_can_be_read(operator: Client) -> None:
    worker = rows.worker()
    gone = rows.worker(
        name="old",
        phase="STOPPED",
        stop_report={"completed": 41, "interrupted": 2, "reason": "TERM"},
    )
    from jobqueue.models import LeaderLease

    now = timezone.now()
    LeaderLease.objects.create(
        name="maintenance",
        holder=worker.pk,
        term=7,
        acquired_at=now,
        expires_at=now + timedelta(seconds=15),
    )
    shown = page(operator, "/admin/jobqueue/worker/")
    assert "leader" in shown
    assert "41" in shown
    assert "TERM" in page(operator, f"/admin/jobqueue/worker/{gone.pk}/")
    assert "worker-1" in page(operator, "/admin/jobqueue/leaderlease/")
