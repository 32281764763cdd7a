"""What operators do, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone
from playwright.sync_api import Page, expect

from jobqueue.models import Job, JobEvent, Queue, Schedule
from jobqueue.states import State
from project.contacts.models import Contact, Webhook
from project.contacts.requests import request_sample, request_webhook
from tests.children import Children, wait_until
from tests.web import rows

pytestmark = [
    pytest.mark.browser,
    pytest.mark.spec("S226", "S227"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
]


@pytest.fixture
def worker(desk: Page, tmp_path: Path) -> Iterator[Children]:
    """A real worker on the tests' database."""
    with Children(tmp_path) as started:
        started.worker()
        yield started


def test_a_running_imports_page_updates_and_shows_the_outcome_of_its_cancel_without_a_reload(
    desk: Page, worker: Children
) -> None:
    job_id = request_sample("big").job_id
    live = desk.locator("#jq-live")
    desk.get_by_role("link", name=f"#{job_id} tasks.import_contacts").click()
    desk.evaluate("window.stayed = true")
    expect(live).to_contain_text("importing")
    before = live.locator("progress").get_attribute("value")
    expect(live.locator("progress")).not_to_have_attribute("value", str(before))
    desk.on("dialog", lambda dialog: dialog.accept())
    desk.get_by_role("button", name="Cancel").click()
    expect(live).to_contain_text("asked to stop")
    expect(live).to_contain_text("Cancelled", timeout=10_000)
    expect(desk.get_by_role("button", name="Retry")).to_be_visible(timeout=10_000)
    assert desk.evaluate("window.stayed") is True
    assert job_id is not None
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.cancel_requested_by) == (State.CANCELLED, "ann")
    assert Contact.objects.count() == 0  # its transaction was rolled back


def test_a_dead_letter_is_fixed_and_retried_and_succeeds(desk: Page, worker: Children) -> None:
    webhook = request_webhook("gone")
    desk.get_by_role("link", name="tasks.deliver_webhook").click()
    live = desk.locator("#jq-live")
    expect(live).to_contain_text("the partner will never take this")
    trace = desk.get_by_text("raise PermanentError")
    expect(trace).to_be_hidden()
    desk.get_by_text("Traceback", exact=True).click()
    expect(trace).to_be_visible()
    Webhook.objects.filter(pk=webhook.pk).update(plan=[200])  # what the partner had to mend
    desk.get_by_role("button", name="Retry").click()
    desk.get_by_label("Reason").fill("the partner is back")
    desk.get_by_role("button", name="Retry").click()
    expect(desk.get_by_text("Retried 1 job.")).to_be_visible()
    expect(desk.get_by_text("by ann: the partner is back")).to_be_visible()
    expect(live).to_contain_text("Attempt 2: Succeeded")
    webhook.refresh_from_db()
    assert webhook.delivered_at is not None
    assert webhook.job_id is not None
    assert Job.objects.get(pk=webhook.job_id).state == State.SUCCEEDED
    assert LogEntry.objects.get().change_message == "retry: the partner is back"


def test_a_job_waits_while_its_queue_is_paused(desk: Page, worker: Children) -> None:
    desk.get_by_role("button", name="Pause default").click()
    desk.get_by_role("button", name="Pause").click()
    expect(desk.get_by_text("paused by ann")).to_be_visible()
    assert Queue.objects.get().paused_at is not None
    webhook = request_webhook("well")
    desk.goto(f"/admin/jobqueue/job/{webhook.job_id}/")
    live = desk.locator("#jq-live")
    expect(live).to_contain_text("The queue default was paused by ann.")
    assert Job.objects.get().state == State.READY
    desk.goto("/admin/jobqueue/queue/")
    desk.get_by_role("button", name="Resume default").click()
    desk.get_by_role("button", name="Resume").click()
    expect(desk.get_by_text("paused by ann")).to_have_count(0)
    desk.goto(f"/admin/jobqueue/job/{webhook.job_id}/")
    expect(live).to_contain_text("Succeeded")


def test_two_thousand_dead_letters_are_retried_by_a_bulk_order(
    desk: Page, worker: Children
) -> None:
    now = timezone.now()
    Job.objects.bulk_create(
        Job(
            task=rows.TASK, args=[7], state=State.DEAD, finished_at=now, run_at=now, enqueued_at=now
        )
        for _ in range(2000)
    )
    desk.goto("/admin/jobqueue/job/?state=DEAD")
    desk.get_by_label("all matching jobs, on every page").check()
    desk.get_by_role("button", name="Retry").click()
    expect(desk.get_by_text("worked through in slices")).to_be_visible()
    desk.get_by_label("Reason").fill("the other side is back")
    desk.get_by_role("button", name="Retry").click()
    expect(desk.get_by_text("Retried 2000 jobs")).to_be_visible(timeout=30_000)
    assert JobEvent.objects.filter(kind="retry", actor="ann").count() == 2000
    ended = Job.objects.filter(task=rows.TASK, state=State.SUCCEEDED)
    wait_until(lambda: ended.count() == 2000, seconds=30)


def test_a_schedule_is_made_and_run_from_its_page(
    desk: Page, worker: Children, operators_tasks: None
) -> None:
    desk.goto("/admin/jobqueue/schedule/")
    desk.get_by_role("link", name="New schedule").click()
    desk.get_by_label("Name").fill("nightly")
    desk.get_by_label("Task").select_option(rows.TASK)
    desk.get_by_label("Cron expression").fill("30 2 * *")
    desk.get_by_role("button", name="Save").click()
    expect(desk.get_by_text("has 4 fields")).to_be_visible()
    desk.get_by_label("Cron expression").fill("30 2 * * *")
    desk.get_by_label("Arguments:", exact=True).fill("[7]")
    desk.get_by_role("button", name="Save").click()
    expect(desk.get_by_text("Saved nightly.")).to_be_visible()
    expect(desk.get_by_text("02:30")).to_have_count(10)
    desk.get_by_role("button", name="Run now").click()
    desk.get_by_role("button", name="Run now").click()
    expect(desk.get_by_text("Enqueued as job")).to_be_visible()
    wait_until(lambda: Job.objects.get().state == State.SUCCEEDED)
    wait_until(lambda: Schedule.objects.get().next_run_at is not None)  # the leader's plan


def test_the_dashboard_refreshes_itself_but_not_in_a_hidden_tab(desk: Page) -> None:
    asked: list[str] = []
    desk.on("request", lambda request: asked.append(request.url))
    rows.job(State.DEAD, task="shop.tasks.broken")
    desk.clock.install()
    desk.reload()  # the page's own clock from now on is the test's
    rows.job(State.DEAD, task="shop.tasks.broken_later")
    desk.clock.run_for(3_500)
    expect(desk.get_by_role("link", name="tasks.broken_later")).to_be_visible()
    desk.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    asked.clear()
    desk.clock.run_for(60_000)  # twenty ticks
    desk.evaluate("fetch('/admin/jobqueue/queue/').then(() => 0)")  # its request would be logged
    assert [url for url in asked if "live" in url] == []
    assert asked


def test_the_list_can_be_used_with_the_keyboard_alone(desk: Page) -> None:
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


def test_a_refresh_keeps_the_keyboard_focus(desk: Page) -> None:
    job = rows.job(State.RUNNING)
    desk.reload()
    desk.get_by_role("link", name=f"#{job.pk}").focus()
    with desk.expect_response("**/dashboard/live/"):
        desk.evaluate("document.body.dispatchEvent(new Event('jq-tick'))")
    rows.job(State.DEAD, task="shop.tasks.broken")
    with desk.expect_response("**/dashboard/live/"):
        desk.evaluate("document.body.dispatchEvent(new Event('jq-tick'))")
    expect(desk.get_by_role("link", name="tasks.broken")).to_be_visible()
    expect(desk.get_by_role("link", name=f"#{job.pk}")).to_be_focused()
    desk.keyboard.press("Enter")
    desk.wait_for_url(f"**/job/{job.pk}/")


def test_pages_fit_a_phone(desk: Page) -> None:
    job = rows.job(State.DEAD, task=f"{'shop.' * 20}tasks.{'long' * 20}", last_error="e" * 400)
    JobEvent.objects.create(job=job.pk, kind="blocked_loop", note=f"It blocked\n{'f' * 400}")
    rows.job(State.RUNNING, task="x" * 200)
    gone = rows.worker(phase="STOPPED", stop_report={"reason": "r" * 300})
    schedule = Schedule.objects.create(name="s" * 200, task="t" * 200, cron="* * * * *")
    desk.set_viewport_size({"width": 360, "height": 740})
    for address in (
        "dashboard/",
        "job/",
        f"job/{job.pk}/",
        "queue/",
        "worker/",
        f"worker/{gone.pk}/",
        "leaderlease/",
        "schedule/",
        f"schedule/{schedule.pk}/",
        "schedule/new/",
    ):
        desk.goto(f"/admin/jobqueue/{address}")
        too_wide = desk.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert too_wide <= 0, address


@pytest.mark.spec("S228", "D97")
def test_a_script_in_a_row_is_never_executed(desk: Page) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    job = rows.job(
        State.RUNNING, task=evil, kwargs={evil: evil}, last_error=evil, progress={"note": evil}
    )
    JobEvent.objects.create(job=job.pk, kind="blocked_loop", note=f"{evil}\n{evil}")
    for address in ("dashboard/", "job/", f"job/{job.pk}/"):
        with desk.expect_event("load"):
            desk.goto(f"/admin/jobqueue/{address}", wait_until="networkidle")
        assert desk.title() != "owned"
