"""Behind PgBouncer in transaction mode, set up as docs/operating.md says."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection

from jobqueue import enqueue_many
from jobqueue.models import Job, LeaderLease
from tests.children import ROOT, wait_until
from tests.processes import tempers as tasks
from tests.processes.fleet import Fleet, states
from tests.processes.pooler import PROGRAM, pgbouncer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
    pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed"),
]
SESSIONS = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%%'"""
ADVISORY = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture
def pooled(fleet: Fleet) -> Iterator[Fleet]:
    with pgbouncer(connection.settings_dict["NAME"]) as address:
        fleet.environment["DATABASE_URL"] = address
        fleet.environment["DJANGO_SETTINGS_MODULE"] = "tests.processes.pooled_settings"
        fleet.settings = {**fleet.settings, "NOTIFY": False}
        yield fleet


def run(fleet: Fleet, *command: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**fleet.environment, "JOBQUEUE_SETTINGS": '{"NOTIFY": false}'},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def ask(statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])


@pytest.mark.spec("D33", "D34")
def test_two_workers_share_the_work_and_one_leads(pooled: Fleet) -> None:
    workers = [pooled.start("--concurrency", "4") for _ in range(2)]
    ids = enqueue_many((tasks.nap.using(max_attempts=3), [0.01]) for _ in range(300))
    wait_until(lambda: states()["SUCCEEDED"] == len(ids), 60)
    assert sorted(job for job, _, word in pooled.effects() if word == "end") == sorted(ids)
    holders = {str(lease.holder) for lease in LeaderLease.objects.all()}
    assert len(holders & {str(worker.row().id) for worker in workers}) == 1
    assert ask(ADVISORY) == 0
    assert [worker.stop() for worker in workers] == [0, 0]
    assert sum(len(worker.events("leader_elected")) for worker in workers) in (1, 2)
    assert ask(SESSIONS) == 0
    assert not Job.objects.exclude(failures=0).exists()


@pytest.mark.spec("D121")
def test_acts_over_thousands_of_jobs_change_all_of_them(pooled: Fleet) -> None:
    enqueue_many((tasks.nap.using(queue_name="default"), [0]) for _ in range(5_000))
    assert run(pooled, "-m", "tests.processes.run_bulk", "default").split() == ["DONE", "5000"]
    assert states() == {"CANCELLED": 5_000}
    run(pooled, "manage.py", "jobqueue", "retry", "--state", "CANCELLED")
    assert states() == {"READY": 5_000}
    run(pooled, "manage.py", "jobqueue", "cancel", "--queue", "default")
    assert states() == {"CANCELLED": 5_000}
    assert ask(SESSIONS) == 0
