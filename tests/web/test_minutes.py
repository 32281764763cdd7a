import asyncio
from datetime import datetime, timedelta

import psycopg
import pytest
from django.utils import timezone

from jobqueue import conf
from jobqueue.models import Minute
from jobqueue.states import State
from jobqueue.store import minute_stats
from tests.web import rows

pytestmark = [pytest.mark.spec("S226"), pytest.mark.django_db(transaction=True)]


def write() -> bool:
    async def once() -> bool:
        parameters = conf.connection_parameters()
        async with await psycopg.AsyncConnection.connect(autocommit=True, **parameters) as link:
            return await minute_stats.write(link)

    return asyncio.run(once())


def last_minute() -> datetime:
    safe = timezone.now() - timedelta(seconds=6)
    return safe.replace(second=0, microsecond=0) - timedelta(minutes=1)


def test_a_finished_minute_is_written_once_by_queue_and_for_all_together() -> None:
    at = last_minute()
    Minute.objects.create(at=at - timedelta(minutes=1))  # the next one is `at`, however slow we are
    inside = at + timedelta(seconds=30)
    for wait in (1, 2, 3):
        start = inside - timedelta(seconds=5)
        rows.job(
            State.SUCCEEDED,
            queue="mail",
            attempts=1,
            run_at=start - timedelta(seconds=wait),
            started_at=start,
            finished_at=inside,
        )
    dead = rows.job(State.DEAD, attempts=2, failures=2, finished_at=inside)
    for number in (1, 2):
        rows.attempt(dead, number, finished_at=inside)
    rows.job(State.CANCELLED, finished_at=inside - timedelta(minutes=5))
    write()
    write()
    found = {row.queue: row for row in Minute.objects.filter(at=at)}
    assert set(found) == {"", "mail", "default"}
    assert (found[""].succeeded, found[""].dead, found[""].failed) == (3, 1, 2)
    assert found["mail"].wait_p50 == pytest.approx(2)
    assert found["default"].wait_p50 is None


def test_missed_minutes_are_caught_up_one_a_call_and_at_most_an_hour_back() -> None:
    Minute.objects.create(at=last_minute() - timedelta(days=2), queue="")
    more, calls = True, 0
    while more:
        more, calls = write(), calls + 1
    assert calls in (61, 62)
    assert Minute.objects.filter(queue="").count() == calls + 1


def test_minutes_older_than_the_charts_need_are_forgotten() -> None:
    Minute.objects.create(at=last_minute() - timedelta(days=9), queue="")
    write()
    assert not Minute.objects.filter(at__lt=last_minute() - timedelta(days=8)).exists()
