import html
import re
from datetime import timedelta
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobqueue.models import Job, JobEvent, Schedule
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


@pytest.mark.parametrize(
    "number", ["1e5000", "9" * 5_000, "[" * 3_000 + "]" * 3_000], ids=["1e5000", "long", "deep"]
)
def test_no_page_falls_over_a_value_that_python_cannot_read(operator: Client, number: str) -> None:
    fine = rows.job(State.DEAD)
    for column, value in (
        ("args", f"[{number}]"),
        ("kwargs", f'{{"n": {number}}}'),
        ("result", number),
        ("progress", f'{{"done": {number}}}'),
        ("options", f'{{"n": {number}}}'),
    ):
        job = rows.job(State.SUCCEEDED if column == "result" else State.DEAD)
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE jobqueue_job SET {column} = %s::jsonb WHERE id = %s", [value, job.pk]
            )
        shown = page(operator, reverse("admin:jobqueue_job_change", args=[job.pk]))
        assert "9" * 5_000 not in shown
        if column in ("args", "kwargs", "result") and "[" not in number:
            assert "cannot be read" in shown
        page(operator, reverse("admin:jobqueue_dashboard_changelist"))
        found = page(operator, LIST, q="order")
        assert f"#{fine.pk}" in page(operator, LIST)
        assert f"#{job.pk}" in page(operator, LIST), found
        assert act(operator, "delete", job=[job.pk], confirmed="1").status_code in (200, 302)


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
        ({"after": "garbage"}, 4),
    ):
        assert page(operator, LIST, **filters).count('name="job"') == expected, filters


@pytest.mark.spec("S226")
def test_a_search_by_id_finds_the_one_job(operator: Client) -> None:
    job = rows.job(pk=2**53 + 5)
    rows.job()
    assert page(operator, LIST, q=f"#{job.pk}").count('name="job"') == 1
    assert page(operator, LIST, q="9" * 30).count('name="job"') == 0


@pytest.mark.spec("S226")
@pytest.mark.django_db
@pytest.mark.parametrize(
    "filters",
    [*({"state": state} for state in ("", *State)), {"task": rows.TASK}, {"queue": "q0"}],
    ids=lambda filters: "-".join(filters.values()) or "all",
)
def test_the_next_page_starts_after_the_last_row_and_the_previous_one_goes_back(
    filters: dict[str, str],
) -> None:
    from jobqueue.admin import job_changelist
    from jobqueue.admin.filters import Filters

    now, state = timezone.now(), filters.get("state", "")
    for position in range(25):
        kind = State(state) if state else list(State)[position % 7]
        queue = "q0" if "queue" in filters else f"q{position % 3}"
        rows.job(kind, queue=queue, priority=position % 4, run_at=now)
    pages, after = [], ""
    for _ in range(4):
        pages.append(job_changelist.fetch(Filters(**filters), after, size=7))
        after = pages[-1].next
    assert after == ""
    assert pages[0].previous == ""
    seen = [[job.pk for job in page.jobs] for page in pages]
    assert sorted(pk for pks in seen for pk in pks) == sorted(
        Job.objects.values_list("pk", flat=True)
    )
    page = pages[-1]
    for number in (2, 1, 0):
        page = job_changelist.fetch(Filters(**filters), before=page.previous, size=7)
        assert [job.pk for job in page.jobs] == seen[number]
        onward = job_changelist.fetch(Filters(**filters), page.next, size=7)
        assert [job.pk for job in onward.jobs] == seen[number + 1]
    assert page.previous == ""


def test_the_list_links_to_the_next_and_the_previous_page(operator: Client) -> None:
    for _ in range(120):
        rows.job(State.DEAD)

    def follow(shown: str, rel: str) -> str:
        found = re.search(rf'rel="{rel}" href="([^"]*)"', shown)
        assert found is not None
        return page(operator, LIST + html.unescape(found[1]))

    def ids(shown: str) -> list[str]:
        return re.findall(r'name="job" value="(\d+)"', shown)

    first = page(operator, LIST, state="DEAD")
    assert 'rel="prev"' not in first
    last = follow(follow(first, "next"), "next")
    assert len(ids(last)) == 20
    assert 'rel="next"' not in last
    back = follow(follow(last, "prev"), "prev")
    assert ids(back) == ids(first)
    assert 'rel="prev"' not in back
    assert ids(page(operator, LIST, state="DEAD", before="garbage")) == ids(first)


@pytest.mark.django_db
def test_a_filter_without_an_index_reads_a_window_and_offers_to_search_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobqueue.admin import job_changelist
    from jobqueue.admin.filters import Filters

    monkeypatch.setattr(job_changelist, "WINDOW", 10)
    old = rows.job(State.SUCCEEDED, queue="mail")
    for _ in range(15):
        rows.job(State.SUCCEEDED)
    first = job_changelist.fetch(Filters(state="SUCCEEDED", queue="mail"))
    assert (first.jobs, first.truncated, bool(first.search_on)) == ([], True, True)
    second = job_changelist.fetch(Filters(state="SUCCEEDED", queue="mail"), first.search_on)
    assert [job.pk for job in second.jobs] == [old.pk]
    assert not second.truncated


def test_a_search_by_task_says_what_it_did_not_search(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobqueue.admin import job_changelist

    for _ in range(3):
        rows.job(State.READY)
    assert "were searched" not in page(operator, LIST, task=rows.TASK)
    monkeypatch.setattr(job_changelist, "EACH_WAITING", 2)
    shown = page(operator, LIST, task=rows.TASK)
    assert shown.count('name="job"') == 2
    assert "the 2 of each state that come first were searched" in shown


@pytest.mark.spec("S226", "S228")
def test_text_is_searched_in_arguments_and_errors_but_never_finds_secrets(
    operator: Client,
) -> None:
    rows.job(args=["blue whale"])
    rows.job(kwargs={"password": "blue submarine"})
    rows.job(State.DEAD, last_error="Sky: blue")
    shown = page(operator, LIST, text="blue")
    assert shown.count('name="job"') == 2
    assert "Arguments and errors of 3 jobs were searched" in shown
    assert page(operator, LIST, text="submarine").count('name="job"') == 0
    assert page(operator, LIST, text="100%_").count('name="job"') == 0


@pytest.mark.spec("S228")
def test_a_search_reads_no_arguments_that_are_large_as_text_or_of_unknown_size(
    operator: Client,
) -> None:
    from jobqueue.admin import job_changelist

    most = job_changelist.TEXT_BYTES
    compressible = ["whale" + "x" * 600_000]  # some 7 kB in the table
    rows.job(args=compressible)
    rows.job(kwargs={"n": "whale" + "x" * most})
    rows.job(args=["whale"], args_bytes=None)  # of an older version
    rows.job(args=["whale"], args_bytes=most + 1)
    rows.job(args=["whale"], args_bytes=None, last_error="a whale")  # its error is searched
    rows.job(args=["whale"], args_bytes=most)
    shown = page(operator, LIST, text="whale")
    assert shown.count('name="job"') == 2
    assert "above 8 kB or of unknown size are left out" in shown


@pytest.mark.spec("S228")
def test_a_search_reveals_nothing_about_covered_values(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any text, the page's bytes are the same whether a covered secret holds it or not."""
    from jobqueue.admin import job_changelist

    monkeypatch.setattr(job_changelist, "TEXT_WINDOW", 70)
    for _ in range(150):  # more than a window, each window more than a page
        rows.job(kwargs={"password": "hunter2"}, args=["whale"])
    address = {"text": "XXXX"}
    for _ in range(3):
        pages = []
        for guess in ("hunter2", "guesses"):
            shown = page(operator, LIST, **(address | {"text": guess}))
            plain = re.sub(r'name="(csrfmiddlewaretoken|as_of)" value="[^"]*"', "", shown)
            pages.append(plain.replace(guess, "XXXX"))
        assert pages[0] == pages[1]
        following = re.search(r"after=([^\"&]+)", pages[0])
        if following is None:
            break
        address = {"text": "XXXX", "after": unquote(following[1])}
    assert "Arguments and errors of 10 jobs were searched" in pages[0]  # the last window


def test_a_search_in_several_windows_finds_each_match_once(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobqueue.admin import job_changelist
    from jobqueue.admin.filters import Filters

    monkeypatch.setattr(job_changelist, "TEXT_WINDOW", 10)
    wanted = [rows.job(args=["whale" if i % 4 == 0 else "fish"]).pk for i in range(50)][::4]
    found, after = [], ""
    for _ in range(30):
        part = job_changelist.fetch(Filters(text="whale"), after, size=2)
        found += [job.pk for job in part.jobs]
        after = part.next or part.search_on
        if not after:
            break
    assert found == wanted[::-1]


@pytest.mark.spec("S226", "S228")
def test_a_jobs_page_shows_its_history(operator: Client) -> None:
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
    for text in ("by bob", "fixed the feed", "This was refused", "Traceback …"):
        assert text in shown
    assert "41111111" not in shown
    assert "4111 1111" not in shown
    assert "hx-trigger" not in shown  # nothing will change any more


SECRETS = "password=hunter2 Authorization: Bearer abcdefghijklmnop 4111-1111-1111-1111"


@pytest.mark.spec("S228")
def test_secrets_in_errors_tracebacks_stacks_notes_and_results_are_shown_nowhere(
    operator: Client,
) -> None:
    job = rows.job(
        State.DEAD,
        attempts=1,
        failures=1,
        last_error=SECRETS,
        result={"log": SECRETS},
        progress={"done": 1, "total": 2, "note": SECRETS},
        cancel_requested_at=timezone.now(),
        cancel_reason=SECRETS,
    )
    rows.job(State.SCHEDULED, attempts=1, failures=1, last_error=SECRETS)
    rows.attempt(job, error_class="E", error_message=SECRETS, traceback=f"at\n{SECRETS}")
    JobEvent.objects.create(job=job.pk, kind="retry", note=SECRETS)
    JobEvent.objects.create(job=job.pk, kind="blocked_loop", note=f"{SECRETS}\n{SECRETS}")
    schedule = Schedule.objects.create(
        name="s", task=rows.TASK, cron="0 3 * * *", args=[SECRETS], last_error=SECRETS
    )
    for address in (
        "dashboard/",
        "dashboard/live/",
        "job/",
        "job/?text=blue",
        f"job/{job.pk}/",
        f"job/{job.pk}/live/",
        "schedule/",
        f"schedule/{schedule.pk}/",
        f"schedule/{schedule.pk}/edit/",
    ):
        shown = page(operator, f"/admin/jobqueue/{address}")
        assert "••••••" in shown or "blue" in address, address
        for secret in ("hunter2", "abcdefghijklmnop", "1111"):
            assert secret not in shown, address
    assert page(operator, LIST, text="hunter2").count('name="job"') == 0
    assert page(operator, LIST, text="password=").count('name="job"') == 2


def test_an_error_is_searched_beyond_the_part_that_the_list_shows(operator: Client) -> None:
    rows.job(State.DEAD, last_error=f"{'e' * 2_000} needle")
    assert page(operator, LIST, text="needle").count('name="job"') == 1


@pytest.mark.spec("S226")
def test_where_a_job_blocked_the_event_loop_has_a_section_of_its_own(
    operator: Client,
) -> None:
    job = rows.job()
    assert "Where it blocked" not in page(operator, f"{LIST}{job.pk}/")
    note = "The handler blocked the event loop for 3.1 s at:\n  File x.py, line 4, in sleepy"
    JobEvent.objects.create(job=job.pk, kind="blocked_loop", actor="w", note=note)
    shown = page(operator, f"{LIST}{job.pk}/")
    section = shown[shown.index("Where it blocked the event loop") : shown.index("What happened")]
    assert "<details" in section
    assert "line 4, in sleepy" in section
    timeline = shown[shown.index("What happened") :]
    assert "The handler blocked the event loop for 3.1 s" in timeline
    assert "sleepy" not in timeline


def test_a_running_attempt_is_in_its_place_in_the_history(operator: Client) -> None:
    start = timezone.now() - timedelta(minutes=1)
    job = rows.job(State.RUNNING, claimed_at=start, enqueued_at=start)
    JobEvent.objects.create(job=job.pk, kind="cancel", at=start - timedelta(minutes=1))
    JobEvent.objects.create(job=job.pk, kind="blocked_loop", note="It blocked\nhere")
    shown = page(operator, f"{LIST}{job.pk}/")
    story = shown[shown.index("What happened") :]
    places = [
        story.index(text) for text in (">cancel<", ">running now<", ">blocked the event loop<")
    ]
    assert places == sorted(places)


def test_only_the_newest_of_many_actions_are_shown_and_the_page_says_so(operator: Client) -> None:
    job = rows.job()
    assert "Older acts are not shown." not in page(operator, f"{LIST}{job.pk}/")
    JobEvent.objects.bulk_create(
        JobEvent(job=job.pk, kind="retry", note=f"act {n:03}") for n in range(101)
    )
    shown = page(operator, f"{LIST}{job.pk}/")
    assert "Older acts are not shown." in shown
    assert shown.count("act 0") + shown.count("act 1") == 100


@pytest.mark.spec("D92")
def test_a_jobs_page_handles_unknown_tasks_and_deleted_ids(
    operator: Client,
) -> None:
    job = rows.job(task="shop.tasks.old")
    assert "shop.tasks.old" in page(operator, f"{LIST}{job.pk}/")
    for pk in (10**12, 2**63, 10**30):
        assert operator.get(f"{LIST}{pk}/").status_code == 404


@pytest.mark.spec("S226", "D91")
def test_large_values_are_shortened_or_not_read_at_all(operator: Client) -> None:
    import random

    noise = "".join(chr(random.randint(33, 0xD7FF)) for _ in range(400_000))
    job = rows.job(State.DEAD, args=["x" * 50_000], kwargs={"blob": noise}, last_error="e" * 90_000)
    rows.attempt(job, error_class="E", error_message="m" * 90_000, traceback="t" * 900_000)
    shown = page(operator, f"{LIST}{job.pk}/")
    assert len(shown) < 100_000
    assert "Too large to show" in shown
    assert len(page(operator, LIST)) < 100_000


@pytest.mark.spec("S227")
def test_an_action_asks_for_confirmation_then_runs_and_is_logged(operator: Client) -> None:
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


@pytest.mark.spec("S227", "S228", "D98")
@pytest.mark.parametrize("method", ["get", "head", "put", "delete", "options"])
def test_actions_are_refused_by_any_method_but_post(operator: Client, method: str) -> None:
    job = rows.job(State.DEAD)
    address = f"/admin/jobqueue/job/act/retry/?job={job.pk}&confirmed=1"
    assert getattr(operator, method)(address).status_code == 405
    job.refresh_from_db()
    assert job.state == State.DEAD


@pytest.mark.spec("S227", "D98")
def test_actions_are_refused_without_a_csrf_token(operator: Client) -> None:
    job = rows.job(State.DEAD)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    answer = act(strict, "retry", job=job.pk, confirmed="1")
    assert answer.status_code == 403
    job.refresh_from_db()
    assert job.state == State.DEAD


@pytest.mark.spec("S227", "D93")
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
def test_an_action_on_all_matching_jobs_needs_no_selection(operator: Client) -> None:
    for _ in range(60):
        rows.job(State.DEAD, queue="mail")
    rows.job(State.DEAD)
    form = {"scope": "all", "filter": "state=DEAD&queue=mail"}
    form |= {"as_of": timezone.now().isoformat(), "nonce": uuid4().hex}
    assert "60 jobs" in act(operator, "retry", **form).content.decode()
    act(operator, "retry", **form, confirmed="1")
    assert Job.objects.filter(state=State.READY).count() == 60


@pytest.mark.spec("S227")
def test_a_cancel_by_htmx_returns_the_live_part(operator: Client) -> None:
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
def test_no_action_redirects_to_another_site(operator: Client) -> None:
    job = rows.job(State.DEAD)
    for evil in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
        answer = act(operator, "retry", job=job.pk, confirmed="1", next=evil)
        assert answer["Location"] == LIST


@pytest.mark.spec("S228")
def test_pages_refuse_frames_and_caches(operator: Client) -> None:
    answer = operator.get(LIST)
    assert answer["X-Frame-Options"] == "DENY"
    assert "no-store" in answer["Cache-Control"]


@pytest.mark.spec("D94")
def test_times_are_shown_in_the_browsers_zone(operator: Client) -> None:
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


def test_a_page_whose_question_takes_too_long_is_given_up_and_says_so(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobqueue.admin import base
    from jobqueue.insight import stats

    monkeypatch.setattr(base, "STATEMENT_SECONDS", 0.05)
    monkeypatch.setattr(stats, "figures", lambda: stats.row("SELECT pg_sleep(30)", {}))
    answer = operator.get(LIST)
    assert answer.status_code == 503
    assert "This page took too long" in answer.content.decode()


@pytest.mark.django_db(transaction=True)
def test_the_bound_of_a_page_does_not_outlive_it(admin_client: Client) -> None:
    before = one_value("SHOW statement_timeout")
    assert admin_client.get(LIST).status_code == 200
    assert one_value("SHOW statement_timeout") == before


def one_value(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]
