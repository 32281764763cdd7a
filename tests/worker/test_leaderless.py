"""A fleet without a leader: it works, and says so."""

from datetime import timedelta

import pytest
from django.utils import timezone

from jobqueue.models import Job, LeaderLease
from jobqueue.worker.leadership import leaderless
from jobqueue.worker.leadership.leaderless import LeaderWatch
from tests.children import wait_until
from tests.events import captured
from tests.sample_tasks import send
from tests.worker.parts import working


@pytest.mark.spec("S195")
def test_that_nobody_leads_is_logged_once_after_a_while_and_so_is_the_next_leader(monkeypatch):
    now = 100.0
    monkeypatch.setattr(leaderless.time, "monotonic", lambda: now)
    watch = LeaderWatch(lease_seconds=15)
    with captured() as entries:
        for moment, vacant in [
            (100, True),
            (150, True),
            (155, False),  # a change of leaders
            (160, True),
            (219, True),
            (221, True),
            (300, True),
            (301, False),
            (302, False),
        ]:
            now = float(moment)
            watch.observe(vacant=vacant)
    assert [(entry["event"], entry.get("seconds")) for entry in entries] == [
        ("leader_missing", 61),
        ("leader_returned", None),
    ]


@pytest.mark.spec("S178", "S182")
@pytest.mark.django_db(transaction=True)
def test_without_any_leader_jobs_run_due_ones_are_promoted_and_a_stop_is_clean():
    with working(lead=False) as worker:
        now = send.enqueue(1).id
        later = send.using(run_after=timezone.now() + timedelta(seconds=0.5)).enqueue(2).id
        for job in (now, later):
            wait_until(lambda job=job: Job.objects.get(pk=job).state == "SUCCEEDED")
    assert worker.code == 0
    assert not LeaderLease.objects.exists()
