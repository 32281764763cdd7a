"""Every URL and every action of the admin pages, for every kind of user.

The URLs come from Django's resolver and the actions from the pages' own tables: one that is new
fails here until somebody has said what it wants.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from jobqueue.admin import queues, schedules
from jobqueue.admin.actions import VERBS
from jobqueue.models import BulkOrder, Job, Queue, Schedule
from jobqueue.states import State
from tests.web import rows
from tests.web.conftest import OPERATE, SCHEDULES, VIEW

pytestmark = [pytest.mark.spec("S227", "S228"), pytest.mark.django_db]

# What one must have to see each page; what it answers to who may.
PAGES = {
    "dashboard_changelist": ("view_job", 200),
    "dashboard_live": ("view_job", 200),
    "job_changelist": ("view_job", 200),
    "job_change": ("view_job", 200),
    "job_live": ("view_job", 200),
    "job_history": ("view_job", 302),
    "worker_changelist": ("view_worker", 200),
    "worker_change": ("view_worker", 200),
    "leaderlease_changelist": ("view_leaderlease", 200),
    "queue_changelist": ("view_queue", 200),
    "queue_change": ("view_queue", 302),
    "schedule_changelist": ("view_schedule", 200),
    "schedule_change": ("view_schedule", 200),
    "bulkorder_changelist": ("view_job", 200),
    "bulkorder_change": ("view_job", 200),
}
# Each action, the permission that it needs besides the page's, and a state in which it works.
ACTS = {
    ("job_act", "cancel"): ("cancel_job", State.READY),
    ("job_act", "retry"): ("retry_job", State.DEAD),
    ("job_act", "run-now"): ("run_job", State.SCHEDULED),
    ("job_act", "priority"): ("change_job", State.READY),
    ("job_act", "move"): ("change_job", State.READY),
    ("job_act", "delete"): ("delete_job", State.DEAD),
    ("queue_act", "pause"): ("pause_queue", State.READY),
    ("queue_act", "resume"): ("pause_queue", State.READY),
    ("schedule_act", "enable"): ("change_schedule", State.READY),
    ("schedule_act", "disable"): ("change_schedule", State.READY),
    ("schedule_act", "run"): ("run_schedule", State.READY),
    ("schedule_act", "delete"): ("delete_schedule", State.READY),
}
# What goes on with an order, cancels or resumes it wants the right of its verb: test_bulk_orders.
ORDERS = {"bulkorder_drive", "bulkorder_act"}
# Forms with a page of their own, which their POST goes to.
FORMS = {"schedule_new": "add_schedule", "schedule_edit": "change_schedule"}
TABLES = {
    "job_act": VERBS,
    "queue_act": queues.ACTS,
    "schedule_act": schedules.ACTS,
}
VIEWS = {"job": "view_job", "queue": "view_queue", "schedule": "view_schedule"}
RIGHTS = sorted({*OPERATE, *SCHEDULES})


def routes() -> dict[str, str]:
    """Name to URL of everything in the app's part of the admin."""

    def walk(patterns: list[URLPattern | URLResolver], before: str) -> Iterator[tuple[str, str]]:
        for item in patterns:
            where = before + str(item.pattern)
            if isinstance(item, URLResolver):
                yield from walk(item.url_patterns, where)
            elif where.startswith("admin/jobqueue/"):
                yield (item.name or where).removeprefix("jobqueue_"), f"/{where}"

    return dict(walk(get_resolver().url_patterns, ""))


ROUTES = routes()


@dataclass(frozen=True)
class Things:
    """What the addresses lead to."""

    job: int
    worker: object
    schedule: int
    bulkorder: int

    def address(self, name: str, act: str = "") -> str:
        kind, route = name.split("_")[0], ROUTES[name]
        queue = "mail" if act == "resume" else "default"
        key = queue if kind == "queue" else str(getattr(self, kind, ""))
        for placeholder in ("<int:pk>", "<uuid:pk>", "<str:pk>"):
            route = route.replace(placeholder, key)
        return route.replace("<slug:name>", act)


@pytest.fixture
def things(operators_tasks: None) -> Things:
    Queue.objects.create(name="mail", paused_at=timezone.now())
    schedule = Schedule.objects.create(
        name="nightly", task=rows.TASK, args=[1], cron="0 3 * * *", queue="mail", enabled=True
    )
    order = BulkOrder.objects.create(
        verb="retry", filter={}, moment=timezone.now(), nonce="1", asker_id="1", asker="ann"
    )
    return Things(rows.job().pk, rows.worker().pk, schedule.pk, order.pk)


def snapshot() -> object:
    return (
        sorted(Job.objects.values_list("pk", "state", "priority", "queue")),
        sorted(Queue.objects.values_list("name", "paused_at"), key=str),
        sorted(Schedule.objects.values_list("name", "enabled", "cron")),
    )


FORM = {
    "confirmed": "1",
    "priority": "5",
    "queue": "mail",
    "name": "another",
    "task": rows.TASK,
    "cron": "5 5 * * *",
    "timezone": "UTC",
    "args": "[1]",
    "kwargs": "{}",
    "catch_up": "once",
}


def test_every_url_and_every_action_is_in_the_tables_above() -> None:
    assert {*PAGES, *FORMS, *TABLES, *ORDERS} == set(ROUTES)
    assert {(name, act) for name, table in TABLES.items() for act in table} == set(ACTS)
    assert {right.removeprefix("jobqueue.") for table in TABLES.values() for right in (
        act.permission for act in table.values())} | set(FORMS.values()) == set(RIGHTS)  # fmt: skip


EVERYTHING = [*((name, "") for name in (*PAGES, *FORMS)), *ACTS]


@pytest.mark.spec("D100")
@pytest.mark.parametrize("who", ["anonymous", "customer", "inactive"])
def test_anonymous_users_see_and_do_nothing(who: str, things: Things) -> None:
    client = Client()
    if who != "anonymous":
        user = User.objects.create_user("eve", is_active=who != "inactive", is_superuser=True)
        user.is_staff = who == "inactive"
        user.save()
        client.force_login(user)
    before = snapshot()
    for name, act in EVERYTHING:
        address = things.address(name, act)
        for answer in (client.get(address), client.post(address, FORM | {"job": things.job})):
            assert answer.status_code == 302, address
            assert answer["Location"].startswith("/admin/login/"), address
    assert snapshot() == before


@pytest.mark.spec("D99")
@pytest.mark.parametrize("name", PAGES)
def test_each_page_needs_its_own_permission(
    name: str, things: Things, staff: Callable[..., User], admin_client: Client
) -> None:
    permission, good = PAGES[name]
    others = sorted({*VIEW} - {permission})
    for number, (codenames, expected) in enumerate(
        [([], 403), (others, 403), (RIGHTS, 403), ([permission], good)]
    ):
        client = Client()
        client.force_login(staff(*codenames, username=f"user{number}"))
        assert client.get(things.address(name)).status_code == expected, codenames
    assert admin_client.get(things.address(name)).status_code == good


@pytest.mark.spec("D99")
@pytest.mark.parametrize(("name", "act"), [*ACTS, *((name, "") for name in FORMS)])
def test_each_action_needs_its_own_permission_besides_the_view_permission(
    name: str, act: str, things: Things, staff: Callable[..., User]
) -> None:
    permission, state = ACTS[name, act] if act else (FORMS[name], State.READY)
    address = things.address(name, act)
    if act == "enable":
        Schedule.objects.update(enabled=False)
    form = FORM | {"job": str(rows.job(state).pk)}
    view, by_get = VIEWS[name.split("_")[0]], 405 if act else 200
    before = snapshot()
    others = sorted({*RIGHTS} - {permission})
    other_views = sorted({*VIEW} - {view})
    for number, codenames in enumerate(
        [[], VIEW, [*VIEW, *others], [permission], [*other_views, permission]]
    ):
        client = Client()
        client.force_login(staff(*codenames, username=f"user{number}"))
        assert client.post(address, form).status_code == 403, codenames
        assert client.get(address).status_code in (403, 405)
    assert snapshot() == before
    client = Client()
    client.force_login(staff(view, permission, username="allowed"))
    assert client.get(address).status_code == by_get
    assert snapshot() == before
    assert client.post(address, form).status_code == 302
    assert snapshot() != before


@pytest.mark.parametrize(("name", "act"), [*ACTS, *((name, "") for name in FORMS)])
def test_a_superuser_may_do_everything(
    name: str, act: str, things: Things, admin_client: Client
) -> None:
    if act == "enable":
        Schedule.objects.update(enabled=False)
    job = rows.job(ACTS[name, act][1] if act else State.READY)
    before = snapshot()
    answer = admin_client.post(things.address(name, act), FORM | {"job": str(job.pk)})
    assert answer.status_code == 302
    assert snapshot() != before


def test_djangos_own_forms_are_not_available(things: Things, admin_client: Client) -> None:
    for address in (
        "job/add/",
        f"job/{things.job}/change/",
        f"job/{things.job}/delete/",
        "schedule/add/",
        f"schedule/{things.schedule}/change/",
        f"schedule/{things.schedule}/delete/",
        f"worker/{things.worker}/delete/",
        "dashboard/add/",
    ):
        assert admin_client.get(f"/admin/jobqueue/{address}").status_code == 404, address
    # Any text may be a queue's name; its page leads to its jobs.
    answer = admin_client.get("/admin/jobqueue/queue/add/")
    assert answer["Location"] == "/admin/jobqueue/job/?state=READY&queue=add"


def test_view_permissions_alone_offer_no_actions(viewer: Client, things: Things) -> None:
    for name, (_, expected) in PAGES.items():
        answer = viewer.get(things.address(name))
        assert answer.status_code == expected
        shown = answer.content.decode()
        for offer in ("/act/", "/new/", "/edit/"):
            assert offer not in shown, name


def test_an_unknown_action_is_refused(admin_client: Client, things: Things) -> None:
    for name in TABLES:
        answer = admin_client.post(things.address(name, "explode"), {"confirmed": "1", "job": "1"})
        assert answer.status_code == 403


def test_the_admin_index_links_the_pages(admin_client: Client, things: Things) -> None:
    shown = admin_client.get("/admin/").content.decode()
    assert "/admin/jobqueue/dashboard/" in shown
    assert "/admin/jobqueue/job/" in shown
