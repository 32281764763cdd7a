"""A worker goes on with operators' bulk orders, beside its jobs."""

from dataclasses import replace
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobqueue.models import BulkOrder, Job
from jobqueue.operations import Selection, orders
from jobqueue.states import State
from tests.web import rows
from tests.worker.parts import SHORT, wait_until, working

pytestmark = [pytest.mark.spec("S127"), pytest.mark.django_db(transaction=True)]


def order(verb: str, user: User) -> BulkOrder:
    made, _ = orders.ask(
        verb=verb,
        selection=Selection(),
        moment=timezone.now(),
        parameters={"reason": ""},
        asker=user,
        nonce=uuid4().hex,
        expected=0,
    )
    return made


def test_a_worker_ends_an_order_whatever_queue_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders, "SLICE", 3)
    user = User.objects.create_superuser("ann", password="ann")
    for _ in range(10):
        rows.job(State.DEAD, queue="mail")
    made = order("delete", user)
    with working(replace(SHORT, poll_seconds=0.1), lead=False, queues={"other": 1}) as worker:
        wait_until(lambda: BulkOrder.objects.get().state == "DONE")
        assert len(worker.registry) == 0
    assert worker.code == 0
    made.refresh_from_db()
    assert made.changed == 10
    assert Job.objects.count() == 0


def test_an_order_that_fails_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    user = User.objects.create_superuser("ann", password="ann")
    calls: list[int] = []

    def broken(pk: int) -> bool:
        calls.append(pk)
        raise RuntimeError("a bug")

    monkeypatch.setattr(orders, "run_slice", broken)
    made = order("delete", user)
    with working(replace(SHORT, poll_seconds=0.1), lead=False) as worker:
        wait_until(lambda: calls)
        before = worker.components.heartbeat.good_at
        wait_until(lambda: worker.components.heartbeat.good_at > before)
    assert worker.code == 0
    made.refresh_from_db()
    assert made.state == "RUNNING"
