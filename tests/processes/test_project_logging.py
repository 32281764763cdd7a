"""A project's logging that hangs: the jobs go on, and the end is what the log says of it."""

import time

import pytest

from jobqueue.models import Job, Worker
from tests.children import wait_until
from tests.processes import tasks
from tests.processes.fleet import SHORT, SLACK_SECONDS, Fleet

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


def test_a_mute_mail_server_and_a_dead_job_end_with_the_code_that_the_log_says(fleet: Fleet):
    """Django's defaults with ADMINS: a dead job is an e-mail."""
    fleet.environment["DJANGO_SETTINGS_MODULE"] = "tests.processes.mute_mail"
    worker = fleet.start("--concurrency", "2")
    dead = tasks.die.enqueue().id
    wait_until(lambda: Job.objects.get(pk=dead).state == "DEAD")
    last = tasks.add.enqueue(1, 2).id
    wait_until(lambda: Job.objects.get(pk=last).state == "SUCCEEDED")
    begun = time.monotonic()
    code = worker.stop()
    took = time.monotonic() - begun
    assert (code, worker.report["exit_code"]) == (0, 0)
    assert worker.report["signals_dropped"] == 1
    assert worker.events("signal_receivers_abandoned")
    promised = SHORT["DRAIN_SECONDS"] + SHORT["CANCEL_SECONDS"] + 2
    assert took < promised + SLACK_SECONDS
    assert "Timeout (" not in worker.text()


def test_a_handler_that_hangs_stops_neither_beats_nor_jobs_nor_the_end(fleet: Fleet):
    fleet.environment["DJANGO_SETTINGS_MODULE"] = "tests.processes.mute_log"
    worker = fleet.start("--concurrency", "2", wait=False)
    dead = tasks.die.enqueue().id
    wait_until(lambda: Job.objects.get(pk=dead).state == "DEAD", 40)
    seen = Worker.objects.get().last_seen_at
    last = tasks.add.enqueue(1, 2).id
    wait_until(lambda: Job.objects.get(pk=last).state == "SUCCEEDED")
    wait_until(lambda: Worker.objects.get().last_seen_at > seen)
    assert worker.stop() == 0
    assert "job_dead job=" in worker.text()  # the file's handler came first
    assert "worker_stopped" not in worker.text()
    report = Worker.objects.get().stop_report
    assert (report["completed"], report["unrecorded"]) == (2, 0)
