"""The pages under a policy that allows nothing inline and nothing from elsewhere."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from jobqueue.models import Job, Queue, Schedule
from jobqueue.states import State
from tests.web import rows
from tests.web.test_admin_permissions import FORMS, PAGES, Things

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
LISTEN = """
window.violations = [];
document.addEventListener('securitypolicyviolation', event => window.violations.push(
    `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""
EVIL = "<script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.spec("S228"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
]


def strict(route: Route) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": POLICY})


@pytest.fixture
def strict_desk(desk: Page) -> Iterator[Page]:
    """The desk's browser, in which every answer bears the policy."""
    desk.context.route("**/*", strict)
    desk.context.add_init_script(LISTEN)
    yield desk
    desk.context.unroute_all(behavior="ignoreErrors")  # of what is still being loaded


def violations(page: Page) -> Any:
    return page.evaluate("window.violations")


def test_the_policy_is_heard_of_when_it_is_broken(strict_desk: Page) -> None:
    """Else the other test could not fail."""
    strict_desk.goto("/admin/jobqueue/dashboard/")
    strict_desk.evaluate(
        "document.body.appendChild(Object.assign(document.createElement('script'),"
        " {textContent: 'window.evil = 1'}))"
    )
    strict_desk.wait_for_function("window.violations.length > 0")
    assert strict_desk.evaluate("window.evil") is None


def test_every_page_works_under_a_strict_policy(strict_desk: Page, operators_tasks: None) -> None:
    job = rows.job(State.DEAD, last_error=EVIL, args=[EVIL], progress={"note": EVIL})
    rows.attempt(job, error_class="E", error_message=EVIL, traceback=EVIL)
    Queue.objects.create(name="mail")
    schedule = Schedule.objects.create(name=EVIL, task=rows.TASK, cron="0 3 * * *")
    things = Things(job.pk, rows.worker(name=EVIL).pk, schedule.pk, 0)
    for name in (*PAGES, *FORMS):
        if name.startswith("bulkorder_change") or name.endswith("_live"):
            continue
        strict_desk.goto(things.address(name))
        expect(strict_desk.locator("#content, main").first).to_be_visible()
        assert violations(strict_desk) == [], name
        assert strict_desk.evaluate("window.evil") is None, name


def test_a_page_refreshes_itself_and_acts_under_a_strict_policy(strict_desk: Page) -> None:
    job = rows.job(State.READY)
    strict_desk.goto(f"/admin/jobqueue/job/{job.pk}/")
    Job.objects.filter(pk=job.pk).update(priority=42)
    expect(strict_desk.get_by_text("priority 42")).to_be_visible()  # without a reload
    strict_desk.get_by_role("button", name="Cancel").first.click()
    strict_desk.get_by_role("button", name="Cancel").first.click()
    expect(strict_desk.get_by_text("Cancelled 1 job")).to_be_visible()
    assert violations(strict_desk) == []
