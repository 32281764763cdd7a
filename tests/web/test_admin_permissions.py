"""Every address and every act of the desk, for everybody who might try."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobqueue.admin.verbs import VERBS
from jobqueue.models import Job, Queue, Schedule
from jobqueue.states import State
from tests.web import rows
from tests.web.conftest import OPERATE, SCHEDULES, VIEW

pytestmark = [pytest.mark.spec("S227", "S228"), pytest.mark.django_db]

PAGES = {
    "/admin/jobqueue/dashboard/": "view_job",
    "/admin/jobqueue/dashboard/live/": "view_job",
    "/admin/jobqueue/job/": "view_job",
    "/admin/jobqueue/job/{job}/": "view_job",
    "/admin/jobqueue/job/{job}/live/": "view_job",
    "/admin/jobqueue/worker/": "view_worker",
    "/admin/jobqueue/worker/{worker}/": "view_worker",
    "/admin/jobqueue/leaderlease/": "view_leaderlease",
    "/admin/jobqueue/queue/": "view_queue",
    "/admin/jobqueue/schedule/": "view_schedule",
    "/admin/jobqueue/schedule/{schedule}/": "view_schedule",
}
# act, address, the permission beside the view's, and the state in which it has an effect
ACTS = [
    ("/admin/jobqueue/job/act/cancel/", "cancel_job", State.READY),
    ("/admin/jobqueue/job/act/retry/", "retry_job", State.DEAD),
    ("/admin/jobqueue/job/act/run-now/", "run_job", State.SCHEDULED),
    ("/admin/jobqueue/job/act/priority/", "change_job", State.READY),
    ("/admin/jobqueue/job/act/move/", "change_job", State.READY),
    ("/admin/jobqueue/job/act/delete/", "delete_job", State.DEAD),
    ("/admin/jobqueue/queue/default/act/pause/", "pause_queue", State.READY),
    ("/admin/jobqueue/queue/mail/act/resume/", "pause_queue", State.READY),
    ("/admin/jobqueue/schedule/{schedule}/act/enable/", "change_schedule", State.READY),
    ("/admin/jobqueue/schedule/{schedule}/act/disable/", "change_schedule", State.READY),
    ("/admin/jobqueue/schedule/{schedule}/act/run/", "run_schedule", State.READY),
]
# Stock addresses that the desk must not answer.
STOCK = [
    "/admin/jobqueue/job/add/",
    "/admin/jobqueue/job/{job}/change/",
    "/admin/jobqueue/job/{job}/delete/",
    "/admin/jobqueue/queue/add/",
    "/admin/jobqueue/schedule/add/",
    "/admin/jobqueue/worker/{worker}/delete/",
]


@pytest.fixture
def things() -> dict[str, object]:
    Queue.objects.create(name="mail", paused_at=timezone.now())
    schedule = Schedule.objects.create(
        name="nightly", task=rows.TASK, args=[1], cron="0 3 * * *", queue="mail", enabled=True
    )
    return {"job": rows.job().pk, "worker": rows.worker().pk, "schedule": schedule.pk}


def snapshot() -> object:
    return (
        sorted(Job.objects.values_list("pk", "state", "priority", "queue")),
        sorted(Queue.objects.values_list("name", "paused_at"), key=str),
        sorted(Schedule.objects.values_list("name", "enabled")),
    )


def test_the_tables_above_name_every_address_of_the_desk() -> None:
    from django.contrib import admin

    known = {*PAGES, *(address for address, _, _ in ACTS)}
    for model, desk in admin.site._registry.items():
        if model._meta.app_label != "jobqueue":
            continue
        assert not desk.has_add_permission(None)  # type: ignore[arg-type]
        for url in desk.get_urls():
            route = f"/admin/jobqueue/{model._meta.model_name}/{url.pattern}"
            shape = (
                route.replace("<int:pk>", "{x}")
                .replace("<uuid:pk>", "{x}")
                .replace("<str:pk>", "{x}")
            )
            beginnings = [a for a in known if _matches(a, shape)]
            skipped = route.endswith(("/history/", "queue/<str:pk>/"))  # only lead elsewhere
            assert beginnings or skipped, route
    assert {address.split("/")[-2] for address, _, _ in ACTS} >= set(VERBS)


def _matches(address: str, shape: str) -> bool:
    one, other = address.split("/"), shape.split("/")
    return len(one) == len(other) and all(
        a == b or "{" in b or "<" in b for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("address", [*PAGES, *(address for address, _, _ in ACTS)])
@pytest.mark.parametrize("who", ["anonymous", "customer", "inactive"])
def test_nobody_from_outside_sees_or_does_anything(
    address: str, who: str, things: dict[str, object]
) -> None:
    client = Client()
    if who != "anonymous":
        user = User.objects.create_user("eve", is_active=who != "inactive", is_superuser=True)
        user.is_staff = who == "inactive"
        user.save()
        client.force_login(user)
    before = snapshot()
    for answer in (
        client.get(address.format(**things)),
        client.post(address.format(**things), {"job": str(things["job"]), "confirmed": "1"}),
    ):
        assert answer.status_code == 302
        assert answer["Location"].startswith("/admin/login/")
    assert snapshot() == before


@pytest.mark.parametrize("address", PAGES)
def test_each_page_wants_its_own_permission(
    address: str, things: dict[str, object], staff: Callable[..., User]
) -> None:
    others = sorted({*VIEW} - {PAGES[address]})
    for number, (codenames, expected) in enumerate(
        [([], 403), (others, 403), ([*OPERATE, *SCHEDULES], 403), ([PAGES[address]], 200)]
    ):
        client = Client()
        client.force_login(staff(*codenames, username=f"user{number}"))
        assert client.get(address.format(**things)).status_code == expected, codenames


@pytest.mark.parametrize(("address", "permission", "state"), ACTS)
def test_each_act_wants_its_own_permission_beside_the_view(
    address: str,
    permission: str,
    state: State,
    things: dict[str, object],
    staff: Callable[..., User],
) -> None:
    job = rows.job(state)
    if address.endswith("enable/"):
        Schedule.objects.update(enabled=False)
    form = {"job": str(job.pk), "confirmed": "1", "priority": "5", "queue": "mail"}
    others = sorted({*OPERATE, *SCHEDULES} - {permission})
    before = snapshot()
    for number, codenames in enumerate([VIEW, [*VIEW, *others], [permission]]):
        client = Client()
        client.force_login(staff(*codenames, username=f"user{number}"))
        assert client.post(address.format(**things), form).status_code == 403, codenames
        assert client.get(address.format(**things)).status_code in (403, 405)
    assert snapshot() == before
    client = Client()
    client.force_login(staff(*VIEW, permission, username="allowed"))
    assert client.get(address.format(**things)).status_code == 405
    assert snapshot() == before
    assert client.post(address.format(**things), form).status_code == 302
    assert snapshot() != before


@pytest.mark.parametrize("address", [*PAGES, *STOCK])
def test_a_superuser_sees_every_page_and_no_stock_form(
    address: str, things: dict[str, object], admin_client: Client
) -> None:
    answer = admin_client.get(address.format(**things))
    if address in PAGES:
        assert answer.status_code == 200
    else:  # "add" may be a queue's name, which leads to its jobs
        assert answer.status_code in (302, 404)
        assert "add" not in answer.headers.get("Location", "") or "queue=add" in answer["Location"]


def test_who_may_only_look_is_offered_nothing(viewer: Client, things: dict[str, object]) -> None:
    for address in PAGES:
        shown = viewer.get(address.format(**things)).content.decode()
        assert "/act/" not in shown


def test_an_unknown_act_is_refused(admin_client: Client, things: dict[str, object]) -> None:
    for address in (
        "/admin/jobqueue/job/act/explode/",
        "/admin/jobqueue/queue/mail/act/explode/",
        "/admin/jobqueue/schedule/{schedule}/act/explode/",
    ):
        answer = admin_client.post(address.format(**things), {"confirmed": "1", "job": "1"})
        assert answer.status_code == 403


def test_the_index_links_the_desk(admin_client: Client, things: dict[str, object]) -> None:
    shown = admin_client.get("/admin/").content.decode()
    assert "/admin/jobqueue/dashboard/" in shown
    assert "/admin/jobqueue/job/" in shown
