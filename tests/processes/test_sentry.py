"""What Sentry is sent of a failed job: the same as under Django's own immediate backend."""

import json
import subprocess
import sys

import pytest

from jobqueue import operations
from jobqueue.models import Job
from tests.children import wait_until
from tests.databases import ROOT
from tests.processes import tasks
from tests.processes.fleet import Fleet

pytest.importorskip("sentry_sdk")
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]
IMMEDIATELY = """
from dataclasses import replace
from tests.processes import tasks
for task in (tasks.die, tasks.add):
    replace(task, backend="immediate").enqueue(*([1, "x"] if task is tasks.add else []))
"""


@pytest.fixture
def events(fleet: Fleet, tmp_path):
    """The events of Django's tasks; those of the immediate backend only, once it has run."""
    file = tmp_path / "sentry"
    file.touch()
    fleet.environment["DJANGO_SETTINGS_MODULE"] = "tests.processes.sentry_settings"
    fleet.environment["SENTRY_FILE"] = str(file)

    def events():
        found = map(json.loads, file.read_text().splitlines())
        return [event for event in found if event["logger"] == "django.tasks"]

    return events


def told(event):
    """What somebody who reads the event learns of the error."""
    [error] = event["exception"]["values"] if "exception" in event else [None]
    if error is None:
        return (event["level"], event["logentry"]["message"], None)
    frames = error["stacktrace"]["frames"]
    return (
        event["level"],
        event["logentry"]["message"],
        (error["module"], error["type"], error["value"]),
        frames[-1]["function"],
        frames[-1]["filename"],
        frames[-1]["lineno"],
    )


def test_the_events_are_those_of_the_immediate_backend(fleet: Fleet, events):
    given = {**fleet.environment, "JOBQUEUE_SETTINGS": "{}"}
    command = [sys.executable, ROOT / "manage.py", "shell", "-v", "0", "-c", IMMEDIATELY]
    subprocess.run(command, cwd=ROOT, env=given, check=True, timeout=60)
    immediate = [told(event) for event in events()]
    assert len(immediate) == 2
    worker = fleet.start("--concurrency", "2")
    tasks.die.enqueue()
    wait_until(lambda: len(events()) == 3)
    tasks.add.using(max_attempts=1).enqueue(1, "x")
    wait_until(lambda: len(events()) == 4)
    assert [told(event) for event in events()[2:]] == immediate
    # One that succeeds at last is no event, a cancelled one is an event without an exception.
    tasks.fail_once.enqueue()
    long = tasks.sleep.enqueue(600)
    wait_until(lambda: Job.objects.get(pk=long.id).state == "RUNNING")
    operations.cancel(Job.objects.get(pk=long.id))
    wait_until(lambda: len(events()) == 5)
    assert told(events()[-1])[2] is None
    assert worker.stop() == 0
    assert len(events()) == 5


def test_a_job_whose_worker_was_lost_says_so(fleet: Fleet, events):
    poison = tasks.poison.using(max_attempts=1).enqueue()
    fleet.start("--concurrency", "1", wait=False).process.wait(timeout=60)
    fleet.start("--concurrency", "1")
    wait_until(lambda: Job.objects.get(pk=poison.id).state == "DEAD", 40)
    [event] = wait_until(events)
    [error] = event["exception"]["values"]
    assert (error["module"], error["type"]) == ("jobqueue.exceptions", "WorkerLost")
    assert not error.get("stacktrace")
