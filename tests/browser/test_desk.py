"""The operator's stories, as one lives them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone
from playwright.sync_api import Page, expect

from jobqueue.models import Job, JobEvent, Queue
from jobqueue.states import State
from tests.children import Children, wait_until
from tests.web import rows
from tests.web.tasks import import_slowly

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


def test_a_running_import_moves_and_its_cancel_shows_the_outcome_without_a_reload(
    desk: Page, worker: Children
) -> None:
    result = import_slowly.enqueue(6000)  # it would take a minute
    live = desk.locator("#jq-live")
    desk.get_by_role("link", name="tasks.import_slowly").click()
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
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.cancel_requested_by) == (State.CANCELLED, "ann")


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


def test_two_thousand_dead_letters_are_retried_by_a_job_that_one_can_watch(
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
    desk.get_by_label("all that match, on every page").check()
    desk.get_by_role("button", name="Retry").click()
    expect(desk.get_by_text("in slices by a job of its own")).to_be_visible()
    desk.get_by_label("Reason").fill("the other side is back")
    desk.get_by_role("button", name="Retry").click()
    expect(desk.locator("#jq-live")).to_contain_text('"changed": 2000', timeout=30_000)
    assert JobEvent.objects.filter(kind="retry", actor="ann").count() == 2000
    ended = Job.objects.filter(task=rows.TASK, state=State.SUCCEEDED)
    wait_until(lambda: ended.count() == 2000, seconds=30)


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
