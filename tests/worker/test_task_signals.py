"""Django's signals from the worker: exactly once, and never at a job's expense."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import weakref
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.tasks import TaskResultStatus
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone

import jobqueue
from jobqueue import operations
from jobqueue.exceptions import JobExpired, WorkerLost
from jobqueue.models import Job, Worker
from jobqueue.states import Reason, State
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.tasks import UnknownTask
from jobqueue.worker.outcomes import heard as listeners
from jobqueue.worker.outcomes import last_errors
from jobqueue.worker.outcomes.last_errors import LastErrors
from tests.children import wait_until
from tests.events import captured
from tests.worker import jobs
from tests.worker.parts import working
from tests.worker.running import open_transactions


@pytest.fixture
def connect():
    """Connect receivers; they are gone after the test."""
    connected = []

    def connect(signal, receiver):
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))
        return receiver

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def heard(connect):
    """What was sent: (signal, job, status)."""
    heard = []
    for name, signal in {"started": task_started, "finished": task_finished}.items():

        def receiver(sender, task_result, name=name, **kwargs):
            heard.append((name, int(task_result.id), str(task_result.status)))

        connect(signal, receiver)
    return heard


@pytest.mark.spec("D117", "S87")
def test_each_attempt_is_sent_and_the_final_state_once(work, body, heard, shared):
    running = work()

    def flaky():
        jobs.note("run")
        if len(shared.notes) < 3:
            raise ValueError

    job = int(jobs.call.enqueue(body(flaky)).id)
    assert running.final(job).state == State.SUCCEEDED
    running.wait(lambda: ("finished", job, "SUCCESSFUL") in heard)
    running.stop()
    assert heard == [("started", job, "RUNNING")] * 3 + [("finished", job, "SUCCESSFUL")]


@pytest.mark.spec("D117")
def test_failures_and_cancels_are_sent_with_their_error(work, body, connect, shared):
    running = work()
    results = {}
    connect(
        task_finished,
        lambda sender, task_result, **k: results.update({task_result.id: task_result}),
    )

    async def handler():
        shared.events["in"].set()
        await jobs.asyncio.sleep(600)

    def fails():
        raise ValueError("broken")

    dead = jobs.once.enqueue(body(fails))
    cancelled = jobs.acall.enqueue(body(handler))
    fine = jobs.add.enqueue(1, 2)
    assert shared.events["in"].wait(20)
    operations.cancel(Job.objects.get(pk=cancelled.id))
    running.wait(lambda: len(results) == 3)
    assert results[dead.id].status == TaskResultStatus.FAILED
    assert results[dead.id].errors[0].exception_class is ValueError
    assert "broken" in results[dead.id].errors[0].traceback
    assert results[cancelled.id].status == TaskResultStatus.FAILED
    assert results[fine.id].return_value == 3
    assert results[fine.id].attempts == 1


@pytest.mark.spec("S67", "S87")
def test_a_refused_outcome_is_not_sent(work, body, heard, shared):
    running = work()
    job = jobs.call.enqueue(body(lambda: shared.events["go"].wait(20) and None))
    running.state(job, State.RUNNING)
    Job.objects.filter(pk=job.id).delete()
    shared.events["go"].set()
    running.wait(lambda: len(running.worker.registry) == 0)
    running.stop()
    assert [name for name, *_ in heard] == ["started"]


@pytest.mark.spec("D116", "S87")
def test_receivers_of_every_kind_leave_jobs_unharmed(work, connect, heard):
    running = work()

    def raises(**kwargs):
        raise ValueError("receiver")

    def leaves(**kwargs):
        raise SystemExit(3)

    def breaks(**kwargs):
        transaction.atomic().__enter__()
        Group.objects.create(name="receiver")

    def uses(**kwargs):
        Group.objects.count()

    async def waits(**kwargs):
        await jobs.asyncio.sleep(0)

    for signal in (task_started, task_finished):
        for receiver in (raises, breaks, uses, waits, leaves):
            connect(signal, receiver)
    waiting = [task.enqueue(1, n) for n in range(10) for task in (jobs.add, jobs.aadd)]
    assert [running.final(job).result for job in waiting] == [1 + n // 2 for n in range(20)]
    running.wait(lambda: len([name for name, *_ in heard if name == "finished"]) == 20)
    running.wait(lambda: not open_transactions())
    assert not Group.objects.exists()
    assert running.stop() == 0


@pytest.mark.spec("D116")
def test_a_receiver_that_sleeps_holds_up_no_job(work, connect, shared):
    running = work()
    connect(task_finished, lambda **kwargs: shared.events["go"].wait(30))
    for number in range(10):
        assert running.final(jobs.aadd.enqueue(1, number)).result == 1 + number
    assert running.executor.task_signals.threads.flush() is not None
    shared.events["go"].set()


@pytest.mark.spec("D116")
def test_receivers_that_lag_far_behind_stop_the_claims(work, connect, shared, monkeypatch):
    from jobqueue.worker.outcomes import receiver_threads

    monkeypatch.setattr(receiver_threads, "MOST_WAITING", 5)
    running = work(concurrency=2)
    connect(task_finished, lambda **kwargs: shared.events["go"].wait(30))
    waiting = [jobs.aadd.enqueue(1, number) for number in range(40)]
    running.wait(lambda: running.executor.task_signals.threads.is_behind)
    running.wait(lambda: len(running.worker.registry) == 0)
    assert Job.objects.filter(state=State.READY).exists()
    shared.events["go"].set()
    for job in waiting:
        assert running.final(job).state == State.SUCCEEDED


@pytest.mark.spec("D116")
def test_receivers_that_hang_are_named_shown_dropped_and_counted_and_the_jobs_go_on(
    work, connect, shared, monkeypatch
):
    from jobqueue.worker.outcomes import receiver_threads

    monkeypatch.setattr(receiver_threads, "MOST_WAITING", 5)
    monkeypatch.setattr(receiver_threads, "CALL_SECONDS", 2.0)
    running = work(heartbeat_seconds=0.3)
    connect(task_finished, lambda **kwargs: shared.events["go"].wait(60))
    for number in range(40):
        jobs.aadd.enqueue(1, number)
    row = Worker.objects.filter(pk=running.worker.identity.id)
    with captured() as events:
        running.wait(lambda: row.get().idle_reason == "SIGNALS")
        assert running.worker.probe.unready() == "claims nothing: SIGNALS"
        running.quiet()
        running.wait(lambda: row.get().idle_reason == "")
    stuck = [event for event in events if event["event"] == "signal_receiver_stuck"]
    assert len(stuck) == 4
    assert all('shared.events["go"].wait(60)' in event["stack"] for event in stuck)
    assert "signals_suspended" in [event["event"] for event in events]
    running.wait(lambda: row.get().signals_dropped > 0)
    running.on_loop(running.worker.shutdown.request, "signal")
    running.wait(lambda: running.code == 0)
    assert row.get().stop_report["signals_dropped"] == 40
    assert running.worker.is_stuck
    shared.events["go"].set()


@pytest.mark.spec("D116")
def test_a_receiver_that_comes_back_gets_its_thread_back(work, connect, shared, heard, monkeypatch):
    from jobqueue.worker.outcomes import receiver_threads

    monkeypatch.setattr(receiver_threads, "CALL_SECONDS", 0.2)
    running = work(heartbeat_seconds=0.3)
    connect(task_started, lambda **kwargs: shared.events["go"].wait(60))
    with captured() as events:
        waiting = [int(jobs.aadd.enqueue(1, number).id) for number in range(4)]
        running.wait(lambda: "signals_suspended" in [event["event"] for event in events])
        dropped = int(running.final(jobs.aadd.enqueue(1, 9)).pk)
        shared.events["go"].set()
        running.wait(lambda: len([name for name, *_ in heard if name == "finished"]) == 4)
        later = int(running.final(jobs.aadd.enqueue(1, 9)).pk)
        running.wait(lambda: ("finished", later, "SUCCESSFUL") in heard)
    for job in [*waiting, later]:
        assert [name for name, each, _ in heard if each == job] == ["started", "finished"]
    assert not [job for _, job, _ in heard if job == dropped]
    assert [e["event"] for e in events].count("signal_receiver_returned") == 4


@pytest.mark.spec("D116")
def test_a_slow_receiver_is_called_by_four_threads_in_order_for_each_job(work, connect):
    running, calls, threads = work(concurrency=8), [], set()

    def slow(name, task_result):
        threads.add(threading.current_thread().name)
        time.sleep(0.02)
        calls.append((task_result.id, name))

    connect(task_started, lambda task_result, **k: slow("started", task_result))
    connect(task_finished, lambda task_result, **k: slow("finished", task_result))
    waiting = [jobs.aadd.enqueue(1, number).id for number in range(60)]
    running.wait(lambda: len(calls) == 120)
    assert 2 <= len(threads) <= 4
    for job in waiting:
        assert [name for each, name in calls if each == job] == ["started", "finished"]


@pytest.fixture
def django_log():
    """The logger of Django's own receivers, which the site keeps quiet."""
    logger = logging.getLogger("django.tasks")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield logger
    logger.setLevel(before)


class Mailer(logging.Handler):
    """Slow, as one that sends an e-mail."""

    def __init__(self, level, shared):
        super().__init__(level)
        self.shared, self.threads = shared, set()

    def emit(self, record):
        self.threads.add(threading.current_thread().name)
        self.shared.events["sent"].wait(30)


@pytest.mark.spec("D116")
@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_a_slow_logging_handler_holds_up_neither_jobs_nor_the_loop(
    work, body, shared, level, django_log
):
    running = work()
    mailer = Mailer(level, shared)
    django_log.addHandler(mailer)
    try:
        dead = jobs.once.enqueue(body(lambda: 1 / 0))
        assert running.final(dead).state == State.DEAD
        assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
        running.wait(lambda: mailer.threads)
        assert {name.partition("-")[0] for name in mailer.threads} == {"signals"}
    finally:
        shared.events["sent"].set()
        running.stop()
        django_log.removeHandler(mailer)


@pytest.mark.spec("D116")
def test_a_logging_handler_that_raises_changes_nothing(work, body, django_log):
    class Breaks(logging.StreamHandler):
        def handle(self, record):
            raise ValueError("no log today")

    handler = Breaks()
    django_log.addHandler(handler)
    try:
        running = work()
        assert running.final(jobs.once.enqueue(body(lambda: 1 / 0))).state == State.DEAD
        assert running.final(jobs.add.enqueue(1, 2)).result == 3
        running.stop()
    finally:
        django_log.removeHandler(handler)


def test_the_enqueue_is_sent_by_whoever_enqueues(work, body, connect):
    enqueued = []
    connect(task_enqueued, lambda sender, task_result, **k: enqueued.append(int(task_result.id)))
    running = work()
    parent = jobs.call.enqueue(body(lambda: int(jobs.add.enqueue(1, 2).id)))
    child = running.final(parent).result
    assert enqueued == [int(parent.id), child]


def add(**columns):
    """A job of a queue that no worker serves."""
    given = {"task": jobs.call.module_path, "args": ["unused"], "queue": "elsewhere", **columns}
    return Job.objects.create(**given).pk


@pytest.mark.spec("D117")
@pytest.mark.django_db(transaction=True)
def test_what_the_leader_ends_is_sent_once_too(heard):
    past = timezone.now() - timedelta(seconds=60)
    holder = {"worker": uuid4(), "lease_expires_at": past, "claimed_at": past, "started_at": past}
    lost = add(state=State.RUNNING, lease_token=uuid4(), max_attempts=1, **holder)
    again = add(state=State.RUNNING, lease_token=uuid4(), max_attempts=2, **holder)
    expired = add(expires_at=past)
    gone = add(task="shop.tasks.old", expires_at=past)
    with working():
        wait_until(lambda: len(heard) == 2)
        wait_until(lambda: Job.objects.get(pk=again).state != State.RUNNING)
        wait_until(lambda: Job.objects.get(pk=gone).state == State.DEAD)
    assert sorted(heard) == [("finished", lost, "FAILED"), ("finished", expired, "FAILED")]


@pytest.mark.spec("D117")
def test_handlers_and_receivers_see_the_task_that_was_enqueued(work, body, connect, shared):
    """Its priority, queue, moment and options, and on a retry the errors before."""
    running, seen = work(), {}

    def note(name):
        def receiver(sender, task_result, **kwargs):
            seen.setdefault((name, task_result.attempts), (task_result.task, task_result.errors[:]))

        return receiver

    connect(task_started, note("started"))
    connect(task_finished, note("finished"))

    def flaky(context):
        result = context.task_result
        shared.notes.append((result.task, [e.exception_class for e in result.errors]))
        if context.attempt < 3:
            raise (ValueError, KeyError)[context.attempt - 1]("once more")

    long_ago = timezone.now() - timedelta(days=1)
    asked = jobs.call_with.using(
        priority=7, run_after=long_ago, timeout=50, max_attempts=9, backoff=jobs.quickly
    )
    result = asked.enqueue(body(flaky))
    assert running.final(int(result.id)).state == State.SUCCEEDED
    running.wait(lambda: ("finished", 3) in seen)
    assert shared.notes == [
        (asked, []),
        (asked, [ValueError]),
        (asked, [ValueError, KeyError]),
    ]
    errors = [e.exception_class for e in seen["finished", 3][1]]
    assert errors == [ValueError, KeyError]
    assert {name: task for name, (task, _) in seen.items()} == {
        ("started", 1): asked,
        ("started", 2): asked,
        ("started", 3): asked,
        ("finished", 3): asked,
    }
    result.refresh()
    assert jobs.call_with.get_result(result.id) == result
    assert result.attempts == 3


@pytest.mark.spec("D117")
def test_a_retry_whose_history_cannot_be_read_runs_without_it(work, body, shared):
    running = work()
    session = running.worker.components.executor.history.session
    session.parameters = ConnectionParameters.fixed({**session.parameters.known, "port": 1})

    def flaky(context):
        shared.notes.append((context.attempt, len(context.task_result.errors)))
        if context.attempt == 1:
            raise ValueError

    with captured() as lines:
        job = jobs.call_with.enqueue(body(flaky))
        assert running.final(int(job.id)).state == State.SUCCEEDED
    assert shared.notes == [(1, 0), (2, 0)]
    assert [line["job"] for line in lines if line["event"] == "attempt_history_unread"] == [
        int(job.id)
    ]


class Unlucky(Exception):
    """Counted while it lives."""

    living: weakref.WeakSet = weakref.WeakSet()

    def __init__(self, *args):
        super().__init__(*args)
        self.living.add(self)


@pytest.fixture
def errors(connect):
    """What `sys.exc_info()` says while `task_finished` is sent, by job."""
    errors = {}

    def receiver(sender, task_result, **kwargs):
        kind, error, trace = sys.exc_info()
        frames = [frame for frame, _ in traceback.walk_tb(trace)]
        names = [frame.f_code.co_name for frame in frames]
        errors[int(task_result.id)] = (kind, str(error), names, [dict(f.f_locals) for f in frames])

    connect(task_finished, receiver)
    return errors


@pytest.mark.parametrize("kind", ["call", "acall"])
def test_a_dead_job_is_sent_as_from_an_except_block(work, body, errors, kind):
    running = work()

    def breaks():
        secret = "of the handler"  # noqa: F841
        raise Unlucky("no use")

    async def coroutine():
        breaks()

    name = body(breaks if kind == "call" else coroutine)
    task = getattr(jobs, kind).using(max_attempts=2)
    dead, fine = int(task.enqueue(name).id), int(jobs.add.enqueue(1, 2).id)
    running.wait(lambda: {dead, fine} <= errors.keys())
    found, said, names, variables = errors[dead]
    assert (found, said) == (Unlucky, "no use")
    assert names[-1] == "breaks"
    assert names[0] == kind  # none of the worker's own
    assert "of the handler" not in str(variables)
    assert errors[fine][0] is None


def test_with_debug_the_frames_keep_their_variables(work, body, errors, settings):
    settings.DEBUG = True
    running = work()

    def breaks():
        seen = "of the handler"  # noqa: F841
        raise Unlucky("no use")

    dead = int(jobs.once.enqueue(body(breaks)).id)
    running.wait(lambda: dead in errors)
    assert errors[dead][3][-1]["seen"] == "of the handler"


def test_a_cancelled_job_is_sent_without_an_error(work, body, errors, shared):
    running = work()

    def handler():
        shared.events["in"].set()
        shared.events["go"].wait(20)
        raise Unlucky

    job = jobs.once.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    Job.objects.filter(pk=job.id).update(max_attempts=2, cancel_requested_at=timezone.now())
    shared.events["go"].set()
    running.wait(lambda: int(job.id) in errors)
    assert Job.objects.get(pk=job.id).state == State.CANCELLED
    assert errors[int(job.id)][0] is None


def test_the_errors_of_a_thousand_failures_do_not_live_on(work, body, connect, shared):
    running, seen = work(concurrency=8), []
    go = shared.events["go"]
    connect(task_finished, lambda **k: (go.wait(60), seen.append(sys.exc_info()[0])))
    most = []

    def breaks():
        most.append(len(Unlucky.living))
        raise Unlucky(bytearray(1_000))

    name = body(breaks)
    jobqueue.enqueue_many([(jobs.once, (name,), {})] * 1_000)
    running.wait(lambda: Job.objects.filter(state=State.DEAD).count() == 1_000, 50)
    assert max(most) <= last_errors.MOST_KEPT + 2 * 8  # those that are raised just now
    go.set()
    running.wait(lambda: len(seen) == 1_000, 50)
    assert seen.count(Unlucky) >= last_errors.MOST_KEPT
    running.wait(lambda: len(Unlucky.living) <= 8)


class Lines(logging.Handler):
    """A handler of the project's."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.lines = []

    def emit(self, record):
        self.lines.append(record)


@pytest.fixture
def lines(monkeypatch):
    """What Django's own receivers log, with no other handler in the way."""
    logger, handler = logging.getLogger("django.tasks"), Lines()
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [handler])
    before = logger.level
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.setLevel(before)


def test_errors_are_kept_only_where_somebody_hears(work, body, lines, monkeypatch):
    kept = []
    monkeypatch.setattr(LastErrors, "__init__", lambda this: None)
    monkeypatch.setattr(
        LastErrors, "settle", lambda *_: kept.append(listeners.are_failures_heard())
    )
    running = work()
    running.final(jobs.once.enqueue(body(lambda: 1 / 0)))
    monkeypatch.setattr(logging.getLogger("django.tasks"), "handlers", [])
    running.final(jobs.once.enqueue(body(lambda: 1 / 0)))
    assert kept == [True, False]


def test_a_line_of_django_has_the_handlers_stack(work, body, lines):
    def breaks():
        raise Unlucky("no use")

    running = work()
    running.final(jobs.call.using(max_attempts=2).enqueue(body(breaks)))
    running.wait(lambda: lines)
    [line] = lines
    assert line.exc_info[0] is Unlucky


@pytest.mark.parametrize(
    ("state", "reason", "kind"),
    [
        (State.DEAD, Reason.WORKER_LOST, WorkerLost),
        (State.DEAD, Reason.EXPIRED, JobExpired),
        (State.DEAD, Reason.UNKNOWN_TASK, UnknownTask),
        (State.CANCELLED, Reason.CANCELLED_LOST, None),
    ],
)
def test_what_the_leader_ended_is_sent_with_an_error_that_says_why(
    transactional_db, errors, lines, state, reason, kind
):
    moment = timezone.now()
    task = "no.such.task" if kind is UnknownTask else "tests.worker.jobs.add"
    job = Job.objects.create(task=task, args=[1, 2], state=state, reason=reason, finished_at=moment)
    operations.send_task_finished([job.pk])
    [line] = lines
    assert line.levelname == "ERROR"
    if kind is None:
        assert line.exc_info is None
    else:
        assert line.exc_info[0] is kind
        assert line.exc_info[2] is None
    if kind is not UnknownTask:
        assert errors[job.pk][0] is kind
