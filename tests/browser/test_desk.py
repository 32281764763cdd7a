"""The operator's stories, as one lives them. The worker's part is played by writing its rows."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone
from playwright.sync_api import Page, expect

from jobqueue.admin import bulk
from jobqueue.context import Control, JobContext
from jobqueue.models import Job, JobEvent, Queue
from jobqueue.states import State
from tests.web import rows

pytestmark = [
    pytest.mark.browser,
    pytest.mark.spec("S226", "S227"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
]
UNHELD = {
    "worker": None,
    "lease_token": None,
    "lease_expires_at": None,
    "claimed_at": None,
}


def test_a_running_import_moves_and_its_cancel_shows_the_outcome_without_a_reload(
    desk: Page,
) -> None:
    job = rows.job(State.RUNNING, task="contacts.tasks.import_file")
    desk.get_by_role("link", name="tasks.import_file").click()
    desk.evaluate("window.stayed = true")
    for done in (100, 2500):
        Job.objects.update(progress={"done": done, "total": 5000, "note": "rows"})
        expect(desk.locator("#jq-live")).to_contain_text(f"{done} / 5000")
    desk.on("dialog", lambda dialog: dialog.accept())
    desk.get_by_role("button", name="Cancel").click()
    expect(desk.locator("#jq-live")).to_contain_text("Cancelling…")
    expect(desk.get_by_role("button", name="Cancel")).to_have_count(0)
    job.refresh_from_db()
    assert job.cancel_requested_by == "ann"
    Job.objects.update(
        state=State.CANCELLED,
        reason="cancelled by the handler",
        finished_at=timezone.now(),
        **UNHELD,
    )
    expect(desk.locator("#jq-live")).to_contain_text("cancelled by the handler")
    expect(desk.get_by_role("button", name="Retry")).to_be_visible()
    assert desk.evaluate("window.stayed") is True


def test_a_dead_letter_is_read_and_retried(desk: Page) -> None:
    job = rows.job(State.DEAD, attempts=1, failures=1, last_error="ValueError: order 7 is closed")
    rows.attempt(
        job,
        error_class="ValueError",
        error_message="order 7 is closed",
        traceback="Traceback (most recent call last):\n  in send_receipt",
    )
    desk.reload()
    desk.get_by_role("link", name="tasks.send_receipt").click()
    trace = desk.get_by_text("in send_receipt")
    expect(trace).to_be_hidden()
    desk.get_by_text("Traceback", exact=True).click()
    expect(trace).to_be_visible()
    desk.get_by_role("button", name="Retry").click()
    desk.get_by_label("Reason").fill("order reopened")
    desk.get_by_role("button", name="Retry").click()
    expect(desk.get_by_text("Retried 1 job.")).to_be_visible()
    expect(desk.get_by_text("by ann: order reopened")).to_be_visible()
    job.refresh_from_db()
    assert job.state == State.READY
    assert LogEntry.objects.get().change_message == "retry: order reopened"


def test_a_queue_is_paused_and_resumed(desk: Page) -> None:
    rows.job(queue="mail")
    desk.reload()
    desk.get_by_role("button", name="Pause mail").click()
    desk.get_by_role("button", name="Pause").click()
    expect(desk.get_by_text("paused by ann")).to_be_visible()
    assert Queue.objects.get().paused_at is not None
    desk.get_by_role("button", name="Resume mail").click()
    desk.get_by_role("button", name="Resume").click()
    expect(desk.get_by_text("paused by ann")).to_have_count(0)
    assert Queue.objects.get().paused_at is None


def test_two_thousand_dead_letters_are_retried_by_a_job_that_one_can_watch(desk: Page) -> None:
    now = timezone.now()
    Job.objects.bulk_create(
        Job(task=rows.TASK, state=State.DEAD, finished_at=now, run_at=now, enqueued_at=now)
        for _ in range(2000)
    )
    desk.goto("/admin/jobqueue/job/?state=DEAD")
    desk.get_by_label("all that match, on every page").check()
    desk.get_by_role("button", name="Retry").click()
    expect(desk.get_by_text("in slices by a job of its own")).to_be_visible()
    desk.get_by_label("Reason").fill("the other side is back")
    desk.get_by_role("button", name="Retry").click()
    job = Job.objects.get(task="jobqueue.admin.bulk.run")
    expect(desk).to_have_url(f"{desk.url.split('/admin')[0]}/admin/jobqueue/job/{job.pk}/")
    result = cast(Any, SimpleNamespace(id=str(job.pk)))
    told: dict[str, Any] = bulk.run.func(
        JobContext(task_result=result, control=Control()), *job.args, **job.kwargs
    )
    assert told["changed"] == 2000
    Job.objects.filter(pk=job.pk).update(
        state=State.SUCCEEDED, finished_at=timezone.now(), result=told
    )
    expect(desk.locator("#jq-live")).to_contain_text('"changed": 2000')
    assert JobEvent.objects.filter(kind="retry", actor="ann").count() == 2000


def test_the_dashboard_follows_what_happens_but_not_in_a_hidden_tab(desk: Page) -> None:
    asked: list[str] = []
    desk.on("request", lambda request: asked.append(request.url))
    rows.job(State.DEAD, task="shop.tasks.broken")
    expect(desk.get_by_role("link", name="tasks.broken")).to_be_visible()
    desk.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    desk.wait_for_timeout(500)
    asked.clear()
    desk.wait_for_timeout(9_000)  # two ticks
    assert asked == []


def test_the_list_is_used_with_the_keyboard_alone(desk: Page) -> None:
    job = rows.job(State.DEAD)
    desk.goto("/admin/jobqueue/job/?state=DEAD")
    desk.locator(f'input[name="job"][value="{job.pk}"]').focus()
    desk.keyboard.press("Space")
    desk.get_by_role("button", name="Retry").focus()
    desk.keyboard.press("Enter")
    desk.wait_for_url("**/act/retry/")
    desk.get_by_label("Reason").focus()
    desk.keyboard.press("Enter")
    expect(desk.get_by_text("Retried 1 job.")).to_be_visible()


@pytest.mark.parametrize("address", ["dashboard/", "job/", "queue/", "worker/", "job/{job}/"])
def test_pages_fit_a_phone(desk: Page, address: str) -> None:
    job = rows.job(State.DEAD, task=f"{'shop.' * 20}tasks.{'long' * 20}", last_error="e" * 400)
    rows.job(State.RUNNING, task="x" * 200)
    desk.set_viewport_size({"width": 360, "height": 740})
    desk.goto(f"/admin/jobqueue/{address.format(job=job.pk)}")
    too_wide = desk.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert too_wide <= 0


@pytest.mark.spec("S228")
def test_script_in_a_row_never_runs(desk: Page) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    job = rows.job(
        State.RUNNING, task=evil, kwargs={evil: evil}, last_error=evil, progress={"note": evil}
    )
    for address in ("dashboard/", "job/", f"job/{job.pk}/"):
        desk.goto(f"/admin/jobqueue/{address}")
        desk.wait_for_timeout(300)
        assert desk.title() != "owned"
