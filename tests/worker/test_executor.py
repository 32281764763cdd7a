"""One attempt from claim to outcome: what is imported, checked, run, and stored."""

from __future__ import annotations

import asyncio
import decimal
import gc
import json
import resource
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from jobqueue import operations
from jobqueue.models import Job
from jobqueue.states import Reason, State
from jobqueue.worker.claiming import parked_jobs
from jobqueue.worker.claiming.claim_round import Intake
from tests.worker import jobs
from tests.worker.running import attempts, sql

TASK = "from django.tasks import task\n\n\n@task\ndef work(number=1):\n    return number\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported; returns its name. Call again to change it."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def module(name: str, text: str) -> str:
        Path(tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        names.append(name)
        return name

    yield module
    from jobqueue import tasks

    for name in names:
        sys.modules.pop(name, None)
        for path in [path for path in tasks._known if path.startswith(f"{name}.")]:
            del tasks._known[path]


def enqueue(path: str, **columns: Any) -> int:
    """A row for a task that this process may not know."""
    columns = {"task": path, "args": [], **columns}
    names = ", ".join(columns)
    holes = ", ".join(["%s"] * len(columns))
    values = [json.dumps(v) if isinstance(v, list | dict) else v for v in columns.values()]
    statement = f"INSERT INTO jobqueue_job ({names}) VALUES ({holes}) RETURNING id"
    return int(sql(statement, *values)[0][0])


def parked(running, job):
    return running.wait(
        lambda: Job.objects.filter(
            pk=job, state=State.SCHEDULED, reason=Reason.UNKNOWN_TASK
        ).first()
    )


def test_a_claim_that_is_returned_by_a_worker_that_stays_runs_after_a_second(work, monkeypatch):
    """As one whose answer came late: it needs neither a poll nor a leader to come back."""
    accept, returned = Intake.accept, []

    def accept_late(intake, rows, sent, *, start):
        first = [row for row in rows if not returned]
        returned.extend(first)
        accept(intake, rows, sent, start=start and not first)

    monkeypatch.setattr(Intake, "accept", accept_late)
    running = work(poll_seconds=300.0, heartbeat_seconds=60.0, lease_seconds=600.0)
    job = jobs.add.enqueue(1, 2)
    row = running.state(job, State.SCHEDULED)
    assert (row.reason, row.attempts, row.started_at) == (Reason.RETURNED, 0, None)
    assert row.hold_until > row.run_at
    row = running.final(job)
    assert (row.result, row.attempts) == (3, 1)
    assert row.started_at.timestamp() - returned[0].claimed_at >= 1.0


# Unknown tasks.


@pytest.mark.spec("S61", "D103")
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no.such.module.task", "No module named 'no'"),
        ("tests.worker.jobs.missing", "missing"),
        ("os.system", "not a task"),
        ("tests.worker.jobs.note", "not a task"),
        ("", "not a dotted path"),
        ("word", "not a dotted path"),
        ("..", ""),
    ],
)
def test_an_unknown_task_is_parked_uncounted_and_says_why(work, path, why):
    running = work()
    job = enqueue(path, args=["echo never > /tmp/never"])
    good = jobs.add.enqueue(1, 2)
    row = parked(running, job)
    assert (row.attempts, row.failures, row.started_at) == (0, 0, None)
    assert why in row.last_error
    assert row.parked_at is not None
    assert attempts(job) == []
    assert running.final(good).result == 3


@pytest.mark.spec("S61", "S73", "D103", "D105")
@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('at import')",
        "import sys; sys.exit(3)",
        "raise KeyboardInterrupt",
        "raise BaseException('bare')",
        "def broken(:",
        "class Odd(Exception):\n    def __repr__(self): raise SystemExit\nraise Odd",
    ],
)
def test_a_module_that_breaks_at_its_import_parks_its_job_and_hurts_nobody(work, module, text):
    running = work()
    job = enqueue(f"{module('breaks', text)}.work")
    row = parked(running, job)
    assert row.last_error
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3


@pytest.mark.spec("S61")
def test_a_parked_job_runs_when_newer_code_knows_it(work, module, monkeypatch):
    for name in ("LOOK_SECONDS", "UNKNOWN_SECONDS"):
        monkeypatch.setattr(parked_jobs, name, 0.2)
    running = work()
    job = enqueue("arrives.work", args=[7])
    assert parked(running, job)
    module("arrives", TASK)
    row = running.final(job)
    assert (row.state, row.result, row.attempts) == (State.SUCCEEDED, 7, 1)


@pytest.mark.spec("S61")
def test_an_import_that_blocks_holds_up_neither_the_loop_nor_other_jobs(work, module, shared):
    running = work(concurrency=2)
    name = module(
        "blocks",
        "import threading\nfrom tests.worker.jobs import shared\n"
        "shared.notes.append(threading.current_thread().name)\n"
        "shared.events['importing'].set()\nshared.events['go'].wait(30)\n" + TASK,
    )
    job = enqueue(f"{name}.work")
    assert shared.events["importing"].wait(20)
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
    assert shared.notes[0].startswith("handler-")
    shared.events["go"].set()
    assert running.final(job).result == 1


@pytest.mark.spec("S59", "S115")
def test_a_job_asked_to_stop_while_its_module_is_imported_never_starts(work, module, shared):
    running = work()
    name = module(
        "slow",
        "from tests.worker.jobs import shared\n"
        "shared.events['importing'].set()\nshared.events['go'].wait(30)\n" + TASK,
    )
    job = enqueue(f"{name}.work")
    assert shared.events["importing"].wait(20)
    operations.cancel(Job.objects.get(pk=job))
    running.wait(lambda: running.inflight(job).stop_reason)
    shared.events["go"].set()
    row = running.final(job)
    assert (row.state, row.reason, row.attempts) == (
        State.CANCELLED,
        Reason.CANCELLED_WAITING,
        0,
    )


def test_an_import_may_use_the_database_and_leaves_nothing_behind(work, module):
    running = work()
    text = "from django.contrib.auth.models import Group\nCOUNT = Group.objects.count()\n" + TASK
    assert running.final(enqueue(f"{module('queries', text)}.work")).result == 1


# Arguments.


@pytest.mark.spec("S62", "D106")
def test_arguments_that_no_longer_fit_are_dead_at_once_and_run_after_the_fix(work, module):
    running = work()
    name = module("changes", TASK)
    job = enqueue(
        f"{name}.work", kwargs={"size": 5}, signature="(number=1, size=2)", max_attempts=5
    )
    row = running.final(job)
    assert (row.state, row.reason, row.attempts) == (State.DEAD, Reason.INVALID_ARGUMENTS, 1)
    assert "(number=1, size=2)" in row.last_error
    assert "unexpected keyword argument 'size'" in row.last_error
    assert (row.args, row.kwargs) == ([], {"size": 5})
    running.stop()

    from jobqueue import tasks

    module(
        name, TASK.replace("number=1", "number=1, size=0").replace("return number", "return size")
    )
    del tasks._known[f"{name}.work"]
    operations.retry(row)
    assert work().final(job).result == 5


def test_a_type_error_of_the_handler_itself_is_an_ordinary_failure(work, body):
    running = work()
    row = running.final(jobs.once.enqueue(body(lambda: len(5))))
    assert (row.reason, row.state) == (Reason.ATTEMPTS_SPENT, State.DEAD)


# Context, options, progress.


@pytest.mark.spec("S63")
def test_each_attempt_sees_its_own_job(work, body):
    running = work()

    def handler(context):
        if context.attempt == 1:
            raise ValueError
        return [context.job_id, context.attempt, context.key, context.is_cancelled]

    async def ahandler(context):
        return handler(context)

    for task, function in ((jobs.call_with, handler), (jobs.acall_with, ahandler)):
        job = task.enqueue(body(function))
        row = running.final(job)
        assert row.result == [row.pk, 2, f"jobqueue-{row.pk}", False]


@pytest.mark.spec("S63", "S122")
def test_a_draining_worker_signals_its_handlers_differently_from_a_cancel(work, body, shared):
    running = work()

    def handler(context):
        shared.events["in"].set()
        while not context.is_stopping:
            shared.events["never"].wait(0.01)
        assert not context.is_cancelled
        raise jobs.Snooze(0)

    job = jobs.call_with.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    assert running.stop() == 0
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.snoozes, row.failures) == (State.READY, 1, 0)


@pytest.mark.spec("S89")
def test_the_last_progress_wins_and_is_stored_with_the_outcome(work, body):
    running = work()

    def handler(context):
        for done in range(20_000):
            context.progress(done, 20_000, "counting")

    async def ahandler(context):
        handler(context)

    for task, function in ((jobs.call_with, handler), (jobs.acall_with, ahandler)):
        row = running.final(task.enqueue(body(function)))
        assert row.progress == {
            "done": 19_999,
            "total": 20_000,
            "note": "counting",
            "number": 20_000,
        }


@pytest.mark.spec("S89")
def test_progress_is_stored_while_the_handler_runs_at_most_twice_a_second(
    work, body, shared, monkeypatch
):
    from jobqueue.store import finish

    writes, store = [], finish.progress

    async def counted(connection, latest):
        writes.append(asyncio.get_running_loop().time())
        return await store(connection, latest)

    monkeypatch.setattr(finish, "progress", counted)
    running = work()

    def handler(context):
        number = 0
        while not shared.events["go"].is_set():
            number += 1
            context.progress(number)
            shared.events["go"].wait(0.002)

    job = jobs.call_with.enqueue(body(handler))
    first = running.wait(lambda: (Job.objects.get(pk=job.id).progress or {}).get("number"))
    running.wait(lambda: Job.objects.get(pk=job.id).progress["number"] > first)
    running.wait(lambda: len(writes) >= 3)
    shared.events["go"].set()
    running.final(job)
    span = writes[-1] - writes[0]
    assert len(writes) - 1 <= 2 * span + 1  # one of them may have been late


@pytest.mark.spec("S89", "S40", "A22")
def test_the_progress_of_an_attempt_that_lost_its_job_is_dropped(work, body, shared):
    running = work()

    def handler(context):
        shared.events["in"].set()
        shared.events["go"].wait(20)
        context.progress(666)
        shared.events["end"].wait(20)

    job = jobs.call_with.enqueue(body(handler))
    assert shared.events["in"].wait(20)
    sql(
        "UPDATE jobqueue_job SET state = 'SCHEDULED', run_at = now() + '1 hour', worker = NULL, "
        "lease_token = NULL, lease_expires_at = NULL, claimed_at = NULL WHERE id = %s",
        job.id,
    )
    shared.events["go"].set()
    inflight = running.inflight(job)
    running.wait(lambda: not inflight.control.noted and inflight.control.progress)
    shared.events["end"].set()
    running.wait(lambda: len(running.worker.registry) == 0)
    assert Job.objects.get(pk=job.id).progress is None


@pytest.mark.spec("S63")
def test_progress_that_is_too_large_or_no_json_is_refused_at_the_call(work, body):
    running = work()

    def handler(context):
        for value in (object(), float("nan"), "x" * 20_000):
            with pytest.raises(ValueError, match="progress"):
                context.progress(1, note=value)

    row = running.final(jobs.call_with.enqueue(body(handler)))
    assert (row.state, row.progress) == (State.SUCCEEDED, None)


@pytest.mark.spec("S65")
def test_the_options_of_a_call_are_stored_and_honoured(work, body):
    running = work()

    def handler():
        raise ValueError

    job = jobs.call.using(
        timeout=None, backoff=30, atomic=True, interruptible=False, max_attempts=3
    ).enqueue(body(handler))
    row = running.state(job, State.SCHEDULED)
    assert row.options == {"timeout": None, "backoff": 30, "atomic": True, "interruptible": False}
    assert (row.max_attempts, row.reason) == (3, Reason.RETRY)
    assert 20 < (row.run_at - attempts(job)[0].finished_at).total_seconds() < 40


def test_a_job_of_another_worker_that_enqueues_names_its_parent(work, body):
    running = work()
    parent = jobs.call.enqueue(body(lambda: jobs.add.enqueue(1, 1).id))
    child = Job.objects.get(pk=running.final(parent).result)
    assert child.parent == int(parent.id)


@pytest.mark.spec("S77", "A15")
def test_a_snooze_costs_no_budget_and_is_counted_apart(work, body, shared):
    running = work()

    def handler():
        jobs.note("run")
        if len(shared.notes) <= 3:
            raise jobs.Snooze(0)

    row = running.final(jobs.once.enqueue(body(handler)))
    assert (row.state, row.snoozes, row.failures, row.max_attempts) == (State.SUCCEEDED, 3, 0, 1)
    assert [a.outcome for a in attempts(row.pk)] == ["SNOOZED"] * 3 + ["SUCCEEDED"]


class RecordedEvents(dict):
    """Notes in which thread it is read."""

    def items(self):
        jobs.note(threading.current_thread().name)
        return super().items()


class Slow(Exception):
    def __str__(self):
        jobs.note(threading.current_thread().name)
        return "slow"


def test_neither_results_nor_errors_are_rendered_on_the_loop(work, body, shared):
    running = work()

    def fails():
        raise Slow

    async def returns():
        return RecordedEvents(a=1)

    async def afails():
        raise Slow

    running.final(jobs.once.enqueue(body(lambda: RecordedEvents(a=1))))
    running.final(jobs.once.enqueue(body(fails)))
    running.final(jobs.aonce.enqueue(body(returns)))
    running.final(jobs.aonce.enqueue(body(afails)))
    assert len(shared.notes) >= 4
    assert {name.partition("-")[0] for name in shared.notes} == {"handler"}


# The worker's own faults.


@pytest.mark.spec("S124", "A24")
def test_one_handler_that_cannot_be_asked_to_stop_keeps_no_other_from_hearing(work, body, shared):
    running = work(cancel_seconds=0.5, heartbeat_seconds=0.3)
    begun = threading.Semaphore(0)

    async def handler():
        begun.release()
        await asyncio.sleep(600)

    name = body(handler)
    waiting = [jobs.acall.enqueue(name) for _ in range(3)]
    for _ in waiting:
        assert begun.acquire(timeout=20)
    odd = running.inflight(waiting[0])
    real, calls = odd._interrupt, []

    def breaks_once(why, cleanup_seconds):
        calls.append(why)
        if len(calls) == 1:
            raise RuntimeError("cannot be asked")
        real(why, cleanup_seconds)

    odd.interrupt_by(breaks_once)
    operations.cancel(Job.objects.filter(pk__in=[job.id for job in waiting]))
    for job in waiting:
        assert running.final(job).state == State.CANCELLED
    assert len(calls) == 2  # a later beat has asked it again


@pytest.mark.spec("S60", "S73", "A4")
def test_an_attempt_ends_even_where_the_worker_itself_breaks(work, monkeypatch):
    running = work()
    real = running.executor.task_signals.started

    def breaks(inflight):
        if inflight.claim.args == [0, 0]:
            raise RuntimeError("a fault of ours")
        return real(inflight)

    monkeypatch.setattr(running.executor.task_signals, "started", breaks)
    for task in (jobs.add, jobs.aadd):
        row = running.final(task.using(max_attempts=1).enqueue(0, 0))
        assert row.state == State.DEAD
        assert "a fault of ours" in row.last_error
        assert running.final(task.enqueue(1, 2)).result == 3
    running.quiet()
    assert running.worker.registry.free == running.settings.concurrency


@pytest.mark.spec("S60", "S73")
def test_options_that_make_no_sense_end_the_attempt(work):
    running = work()
    job = enqueue("tests.worker.jobs.add", args=[1, 2], options={"timeout": "long"}, max_attempts=1)
    assert running.final(job).state == State.DEAD
    assert running.final(jobs.add.enqueue(1, 2)).result == 3


# Memory.


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20


@pytest.mark.spec("D88")
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_what_failing_handlers_allocate_is_freed_with_them(work, body, request, kind):
    """Without the garbage collector: no cycle may hold a handler's locals."""
    rounds = 1_000 if request.config.getoption("--long") else 60
    running = work(concurrency=4)
    failing = []

    def handler():
        data = bytearray(20 * 2**20)
        data[::4096] = b"x" * len(data[::4096])
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    async def ahandler():
        await asyncio.sleep(0)
        handler()

    task, function = (jobs.once, handler) if kind == "plain" else (jobs.aonce, ahandler)
    name = body(function)
    for job in [task.enqueue(name) for _ in range(8)]:
        running.final(job)
    gc.collect()
    gc.disable()
    try:
        before = _resident()
        failing = [task.enqueue(name) for _ in range(rounds)]
        for job in failing:
            assert running.final(job, 300).state == State.DEAD
        assert _resident() - before < 200  # ten handlers' worth; all of them would be 1,200
    finally:
        gc.enable()


@pytest.mark.spec("D89")
def test_debug_does_not_fill_the_memory_with_queries(work, body, settings):
    settings.DEBUG = True
    running = work(concurrency=1)
    from django.db import connection

    def handler():
        for _ in range(100):
            Group.objects.count()
        return len(connection.queries_log)

    name = body(handler)
    for _ in range(5):
        assert running.final(jobs.call.enqueue(name)).result == 100


@pytest.mark.spec("S44", "S74", "D8")
@pytest.mark.parametrize("lead", [False, True])
def test_a_retry_that_is_due_in_a_moment_starts_when_due(work, body, shared, lead):
    """With or without a leader, long before any poll or beat would find it."""
    running = work(
        lead=lead,
        poll_seconds=300.0,
        heartbeat_seconds=60.0,
        lease_seconds=600.0,
        leader_lease_seconds=600.0,
        backoff_base_seconds=0.2,
    )
    runs = []

    async def fails_twice():
        runs.append(1)
        if len(runs) < 3:
            raise ValueError

    job = jobs.acall.enqueue(body(fails_twice))
    row = running.final(job)
    assert (row.state, row.failures) == (State.SUCCEEDED, 2)
    first, second, third = attempts(job)
    assert second.started_at - first.finished_at >= timedelta(seconds=0.15)
    assert third.started_at - second.finished_at >= timedelta(seconds=0.3)


@pytest.mark.parametrize("kind", ["call", "acall"])
def test_each_attempt_has_a_decimal_context_of_its_own(work, body, kind):
    running = work(concurrency=1)

    def handler(precision):
        before = decimal.getcontext().prec
        decimal.getcontext().prec = precision
        return before

    async def coroutine(precision):
        return handler(precision)

    name = body(handler if kind == "call" else coroutine)
    usual = decimal.DefaultContext.prec
    for precision in (3, 4, 5):
        assert running.final(getattr(jobs, kind).enqueue(name, precision)).result == usual
