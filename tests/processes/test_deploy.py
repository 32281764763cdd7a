"""A rolling deploy: workers of the old code beside one of the new."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from jobqueue.models import Job
from jobqueue.states import State
from tests.children import wait_until
from tests.processes.fleet import Fleet, Running

pytestmark = pytest.mark.timeout(120)
NEW = "new_code.brief"
CODE = """
import time
from django.tasks import task

@task
def brief():
    time.sleep(0.2)
"""
# What each of them cost is its own; that all come in time is what counts.
ADD = """
INSERT INTO jobqueue_job (task, state, parked_at)
SELECT %s, %s, CASE WHEN %s THEN now() END FROM generate_series(1, %s)
"""
WAITED = """
SELECT EXTRACT(EPOCH FROM max(finished_at) - min(enqueued_at)) FROM jobqueue_job WHERE task = %s
"""


@pytest.fixture
def started(fleet: Fleet, tmp_path: Path) -> Iterator[Any]:
    """Start a worker that has the new code, or one that has not."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "new_code.py").write_text(CODE)
    path = fleet.environment.get("PYTHONPATH", "")

    def started(*, new: bool, **settings: Any) -> Running:
        here = [path, str(tmp_path / "code")] if new else [path]
        fleet.environment["PYTHONPATH"] = ":".join(filter(None, here))
        return fleet.start(**{"POLL_SECONDS": 5, "CONCURRENCY": 10, **settings})

    yield started
    fleet.environment["PYTHONPATH"] = path


def add(task: str, count: int, *, parked: bool) -> None:
    state = State.SCHEDULED if parked else State.READY
    with connection.cursor() as cursor:
        cursor.execute(ADD, [task, state, parked, count])


def seconds_to_the_last() -> float:
    with connection.cursor() as cursor:
        cursor.execute(WAITED, [NEW])
        return float(cursor.fetchone()[0])


def done(count: int) -> bool:
    return Job.objects.filter(task=NEW, state=State.SUCCEEDED).count() == count


@pytest.mark.spec("S61")
def test_jobs_of_a_new_task_are_done_beside_an_old_worker(started: Any) -> None:
    started(new=False, UNKNOWN_TASK_SECONDS=86_400)
    started(new=True)
    add(NEW, 60, parked=False)
    wait_until(lambda: done(60), 60)
    assert seconds_to_the_last() < 15


@pytest.mark.spec("S61")
def test_a_hundred_thousand_parked_jobs_hold_up_neither_new_jobs_nor_known_parked_ones(
    started: Any,
) -> None:
    add("gone.task", 100_000, parked=True)
    add(NEW, 10, parked=True)
    started(new=True)
    wait_until(lambda: done(10), 20)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM max(j.started_at) - min(w.started_at))"
            " FROM jobqueue_job j, jobqueue_worker w WHERE j.task = %s",
            [NEW],
        )
        assert cursor.fetchone()[0] < 5  # what a busy machine takes to look the task up included
    add(NEW, 10, parked=False)
    wait_until(lambda: done(20), 20)
    left = Job.objects.filter(task="gone.task", state=State.SCHEDULED, attempts=0)
    assert left.count() == 100_000


@pytest.mark.spec("S61")
def test_parked_jobs_do_not_wait_once_the_old_worker_has_gone(started: Any) -> None:
    old = started(new=False)
    add(NEW, 30, parked=False)
    wait_until(lambda: Job.objects.filter(parked_at__isnull=False).count() == 30)
    assert old.stop() == 0
    started(new=True)
    wait_until(lambda: done(30), 30)
    assert set(Job.objects.values_list("attempts", "failures")) == {(1, 0)}
