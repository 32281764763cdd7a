"""Operators' bulk orders: from the form to the last slice."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from jobqueue.admin import bulk_orders
from jobqueue.models import BulkOrder, Job, JobEvent
from jobqueue.operations import Selection, orders
from jobqueue.states import State
from tests.web import rows
from tests.web.conftest import VIEW

pytestmark = [pytest.mark.spec("S127", "S227"), pytest.mark.django_db]


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four jobs a slice, and one slice a turn."""
    monkeypatch.setattr(orders, "SLICE", 4)
    monkeypatch.setattr(bulk_orders, "AT_ONCE_SECONDS", 0.0)


def form(filter: str = "state=DEAD", **more: str) -> dict[str, str]:
    return {
        "scope": "all",
        "filter": filter,
        "confirmed": "1",
        "nonce": uuid4().hex,
        "as_of": timezone.now().isoformat(),
        **more,
    }


def ask(client: Client, verb: str = "retry", **given: str) -> BulkOrder:
    answer = client.post(f"/admin/jobqueue/job/act/{verb}/", form(**given))
    order = BulkOrder.objects.latest("pk")
    assert answer["Location"] == f"/admin/jobqueue/bulkorder/{order.pk}/"
    return order


def drive(client: Client, order: BulkOrder) -> Any:
    answer = client.post(f"/admin/jobqueue/bulkorder/{order.pk}/drive/", HTTP_HX_REQUEST="true")
    order.refresh_from_db()
    return answer


def test_few_jobs_are_done_within_the_request_and_reported_like_any_act(operator: Client) -> None:
    jobs = [rows.job(State.DEAD) for _ in range(3)]
    answer = operator.post("/admin/jobqueue/job/act/retry/", form(reason="fixed"), follow=True)
    assert "Retried 3 jobs." in answer.content.decode()
    assert BulkOrder.objects.get().state == "DONE"
    assert Job.objects.filter(state=State.READY).count() == 3
    assert LogEntry.objects.filter(change_message="retry: fixed").count() == 3 + 1
    assert set(JobEvent.objects.filter(kind="retry").values_list("job", "actor", "note")) == {
        (job.pk, "ann", "fixed") for job in jobs
    }


def test_many_go_on_slice_by_slice_on_the_orders_page(operator: Client, slices: None) -> None:
    for _ in range(10):
        rows.job(State.DEAD)
    order = ask(operator)
    assert (order.state, order.changed, order.expected) == ("RUNNING", 4, 10)
    shown = operator.get(f"/admin/jobqueue/bulkorder/{order.pk}/").content.decode()
    assert "No worker is running: this page continues it" in shown
    assert f'hx-post="/admin/jobqueue/bulkorder/{order.pk}/drive/"' in shown
    rows.worker()
    assert "Any worker and this page continue it" in drive(operator, order).content.decode()
    assert (order.state, order.changed) == ("RUNNING", 8)
    drive(operator, order)
    assert (order.state, order.changed) == ("DONE", 10)
    assert "Retried 10 jobs." in drive(operator, order).content.decode()
    assert JobEvent.objects.filter(kind="retry", actor="ann").count() == 10


def test_an_order_waits_for_no_work_and_needs_no_worker(operator: Client) -> None:
    """Once it was a job at the end of the very queue that it should empty."""
    for _ in range(20):
        rows.job()
    operator.post("/admin/jobqueue/job/act/cancel/", form("state=READY"))
    assert Job.objects.filter(state=State.CANCELLED).count() == 20
    assert Job.objects.count() == 20


def test_jobs_that_came_later_are_left_alone_and_ages_do_not_move(
    operator: Client, slices: None
) -> None:
    now = timezone.now()
    for _ in range(6):
        rows.job(enqueued_at=now - timedelta(hours=2))
    young = rows.job(enqueued_at=now - timedelta(minutes=59))
    order = ask(operator, "cancel", filter="age=over-1h")
    later = rows.job(enqueued_at=timezone.now() + timedelta(seconds=1))
    assert set(order.filter) == {"older_than"}
    drive(operator, order)
    assert (order.state, order.changed) == ("DONE", 6)
    for job in (young, later):
        job.refresh_from_db()
        assert job.state == State.READY


def test_a_double_click_makes_one_order(operator: Client, slices: None) -> None:
    for _ in range(5):
        rows.job(State.DEAD)
    given = form()
    for _ in range(3):
        operator.post("/admin/jobqueue/job/act/retry/", given)
    assert BulkOrder.objects.count() == 1
    other = User.objects.create_superuser("zoe", password="zoe")
    client = Client()
    client.force_login(other)
    assert client.post("/admin/jobqueue/job/act/retry/", given).status_code == 403


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda user: user.user_permissions.clear(), "has no right jobqueue.delete_job any more"),
        (lambda user: User.objects.filter(pk=user.pk).update(is_active=False), "is not active"),
        (lambda user: user.delete(), "is no user any more"),
    ],
)
def test_before_each_slice_the_asker_must_still_have_the_right(
    operator: Client, slices: None, change: Callable[[User], object], why: str
) -> None:
    for _ in range(9):
        rows.job(State.DEAD)
    order = ask(operator, "delete")
    change(User.objects.get(username="ann"))
    orders.work(5.0, lambda: False)
    order.refresh_from_db()
    assert (order.state, order.changed) == ("REFUSED", 4)
    assert why in order.reason
    assert Job.objects.count() == 5


def test_who_resumes_an_order_must_have_its_right_and_stands_for_it(
    operator: Client, slices: None, staff: Callable[..., User]
) -> None:
    """Once a user with `retry_job` alone retried the bulk delete of somebody else."""
    for _ in range(9):
        rows.job(State.DEAD)
    order = ask(operator, "delete")
    act = f"/admin/jobqueue/bulkorder/{order.pk}/act/"
    assert operator.post(f"{act}cancel/", {"confirmed": "1", "reason": "wait"}).status_code == 302
    drive(operator, order)
    assert (order.state, order.reason, order.changed) == ("CANCELLED", "wait", 4)
    weak, strong = Client(), Client()
    weak.force_login(staff(*VIEW, "retry_job", username="bob"))
    strong.force_login(staff(*VIEW, "delete_job", username="carl"))
    shown = weak.get(f"/admin/jobqueue/bulkorder/{order.pk}/").content.decode()
    assert "/act/" not in shown
    for address in (f"{act}resume/", f"{act}cancel/", f"{act[:-4]}drive/"):
        assert weak.post(address, {"confirmed": "1"}).status_code == 403
        assert Client().post(address, {"confirmed": "1"})["Location"].startswith("/admin/login/")
        assert strong.get(address).status_code == 405
    User.objects.filter(username="ann").update(is_active=False)
    assert strong.post(f"{act}resume/", {"confirmed": "1"}).status_code == 302
    drive(strong, order)
    drive(strong, order)
    assert (order.state, order.changed, order.asker) == ("DONE", 9, "carl")
    assert Job.objects.count() == 0
    who = JobEvent.objects.filter(kind="delete").order_by("id").values_list("actor", flat=True)
    assert list(who) == ["ann"] * 4 + ["carl"] * 5
    assert [(entry["what"], entry["by"]) for entry in order.trail] == [
        ("order", "ann"),
        ("cancel order", "ann"),
        ("resume order", "carl"),
        ("done", ""),
    ]
    logged = LogEntry.objects.filter(object_repr=f"delete #{order.pk}").order_by("pk")
    assert list(logged.values_list("user__username", "change_message")) == [
        ("ann", "delete: "),
        ("ann", "cancel: wait"),
        ("carl", "resume"),
    ]


def test_one_row_that_the_database_refuses_holds_up_no_other(operator: Client) -> None:
    jobs = [rows.job(State.DEAD) for _ in range(5)]
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON jobqueue_job FOR EACH ROW "
            f"WHEN (OLD.id = {jobs[2].pk}) EXECUTE FUNCTION refuse()"
        )
    answer = operator.post("/admin/jobqueue/job/act/retry/", form(), follow=True)
    assert "Retried 4 jobs; 1 was refused by the database." in answer.content.decode()
    order = BulkOrder.objects.get()
    assert (order.state, order.reason) == ("DONE", f"#{jobs[2].pk}")


def test_a_filter_that_this_code_does_not_know_is_refused_and_changes_nothing(
    operator: Client, slices: None
) -> None:
    for _ in range(9):
        rows.job(State.DEAD)
    order = ask(operator)
    BulkOrder.objects.update(filter={"colour": "red"})
    drive(operator, order)
    assert (order.state, order.changed) == ("REFUSED", 4)
    assert "unknown restriction 'colour'" in order.reason


@pytest.mark.parametrize(
    "stored",
    [[], {"state": "GONE"}, {"job": True}, {"workers": ["x"]}, {"tasks": "a"}, {"queue": None},
     {"older_than": "2026-01-01"}, {"newer_than": 5}, {"retrying": False}],
)  # fmt: skip
def test_a_stored_filter_is_read_as_it_is_or_not_at_all(stored: Any) -> None:
    with pytest.raises(ValueError, match="filter"):
        Selection.read(stored)


def test_a_stored_filter_comes_back_as_it_was() -> None:
    whole = Selection(
        state="DEAD",
        retrying=True,
        queue="mail",
        tasks=["a.b"],
        tenant="t",
        workers=[str(uuid4())],
        job=7,
        newer_than=timezone.now(),
        older_than=timezone.now(),
    )
    assert Selection.read(whole.stored()) == whole
    assert Selection.read({}) == Selection()


@pytest.mark.django_db(transaction=True)
def test_two_who_go_on_with_one_order_do_not_wait_for_each_other(
    operator: Client, slices: None
) -> None:
    import threading

    for _ in range(9):
        rows.job(State.DEAD)
    order = ask(operator)
    answers: list[bool] = []

    def work() -> None:
        answers.append(orders.run_slice(order.pk))
        connection.close()

    with transaction.atomic():
        assert orders.run_slice(order.pk)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        assert answers == [False]
    order.refresh_from_db()
    assert order.changed == 8


@pytest.mark.django_db(transaction=True)
def test_a_role_that_may_not_read_rights_changes_nothing_and_says_so(
    operator: Client, slices: None
) -> None:
    for _ in range(9):
        rows.job(State.DEAD)
    order = ask(operator)
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE limited")
        try:
            cursor.execute(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO limited"
            )
            cursor.execute("REVOKE SELECT ON auth_user FROM limited")
            cursor.execute("SET ROLE limited")
            with pytest.raises(orders.RightsUnreadableError, match="auth_user"):
                orders.run_slice(order.pk)
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP OWNED BY limited")
            cursor.execute("DROP ROLE limited")
    order.refresh_from_db()
    assert (order.state, order.changed) == ("RUNNING", 4)


def test_the_list_names_the_newest_orders(operator: Client, slices: None) -> None:
    for _ in range(5):
        rows.job(State.DEAD)
    order = ask(operator)
    shown = operator.get("/admin/jobqueue/bulkorder/").content.decode()
    assert f"/admin/jobqueue/bulkorder/{order.pk}/" in shown
    assert operator.get(f"/admin/jobqueue/bulkorder/{10**30}/").status_code == 404


def test_permissions_are_read_afresh_and_not_from_a_cache(
    operator: Client, slices: None, staff: Callable[..., User]
) -> None:
    for _ in range(9):
        rows.job(State.DEAD)
    order = ask(operator, "delete")
    user = User.objects.get(username="ann")
    right = Permission.objects.get(codename="delete_job")
    user.user_permissions.remove(right)
    assert drive(operator, order).status_code == 403
    assert not orders.run_slice(order.pk)
    order.refresh_from_db()
    assert order.state == "REFUSED"
