"""A worker of `--queues '*'`: names that nobody has listed, also new ones."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobqueue import conf
from jobqueue.insight import doctor, stats, why
from jobqueue.models import Job, Queue
from jobqueue.states import State
from tests.children import wait_until
from tests.setup_tasks import OPEN, tasks
from tests.worker import jobs
from tests.worker.parts import settings as short
from tests.worker.parts import working

EVERY = {"*": 1, "-mail": 0}


@pytest.fixture(autouse=True)
def any_name(settings, transactional_db):
    settings.TASKS = tasks(OPEN)


def put(queue):
    return jobs.add.using(queue_name=queue).enqueue(1, 2).id


def states(*ids):
    return [Job.objects.get(pk=id).state for id in ids]


@pytest.mark.spec("S55")
@pytest.mark.parametrize("notify", [True, False])
def test_each_name_is_served_but_those_left_out_and_new_ones_while_it_runs(notify):
    waiting, left_out = [put("a"), put("z.9")], put("mail")
    with working(short(notify=notify), queues=EVERY):
        wait_until(lambda: states(*waiting) == [State.SUCCEEDED] * 2)
        later = [put("new"), put("a"), put("newer")]
        wait_until(lambda: states(*later) == [State.SUCCEEDED] * 3)
        assert states(left_out, put("mail")) == [State.READY] * 2


@pytest.mark.spec("S158")
def test_a_drain_of_every_queue_ends_when_all_but_those_left_out_are_empty():
    soon = timezone.now() + timedelta(seconds=2)
    run = [put("a"), put("b"), jobs.add.using(queue_name="c", run_after=soon).enqueue(1, 2).id]
    failed = jobs.once.using(queue_name="d").enqueue("nobody has put a function there").id
    Queue.objects.create(name="paused", paused_at=timezone.now())
    kept = [put("paused"), put("mail")]
    with working(queues=EVERY, until_idle=True) as worker:
        wait_until(lambda: worker.shutdown.phase == "STOPPED")
    assert states(*run, failed) == [State.SUCCEEDED] * 3 + [State.DEAD]
    assert states(*kept) == [State.READY] * 2
    assert worker.limits.verdict.paused == ("paused",)
    assert worker.code == 3  # one died in a queue that nobody has named


def test_pages_and_why_show_which_queues_it_serves():
    Queue.objects.create(name="idle")
    with working(queues={"*": 1, "-mail": 0, "named": 2}):
        put("mail")
        figures = {queue.name: queue.workers for queue in stats.queues()}
        job = Job.objects.filter(state=State.READY, queue="mail").get()
        reasons = " ".join(cause.text for cause in why.explain(job, timezone.now()))
        job.queue = "idle"
        idle = " ".join(cause.text for cause in why.explain(job, timezone.now()))
        found = [finding.text for finding in doctor.examine()]
    assert figures == {"mail": 0, "idle": 1, "named": 1}
    assert "serves the queue mail" in reasons
    assert "serves" not in idle
    assert any("'mail', which no" in text for text in found)
    assert not any("'idle', which no" in text for text in found)


@pytest.mark.parametrize(
    ("queues", "name", "serves"),
    [
        (["mail"], "mail", True),
        (["mail"], "other", False),
        (["*"], "other", True),
        (["*", "-mail"], "mail", False),
        (["*", "-mail"], "other", True),
        (["mail", "*"], "mail", True),
    ],
)
def test_a_list_of_queues_says_which_names_it_serves(queues, name, serves):
    assert conf.serves(queues, name) is serves
