"""Atomic handlers: their writes, what they enqueue and their success are one commit, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from datetime import timedelta
from itertools import pairwise

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, connections, transaction
from django.tasks.exceptions import InvalidTask
from django.utils import timezone
from psycopg import IsolationLevel

from jobqueue import operations
from jobqueue.models import Attempt, Job
from jobqueue.states import Reason, State
from jobqueue.worker.inflight import Fate
from jobqueue.worker.outcomes import classify
from tests.events import captured
from tests.worker import jobs
from tests.worker.running import active, attempts, open_transactions, sql

FAR = timezone.now() + timedelta(days=1)


def write(name="effect"):
    Group.objects.create(name=name)


def effects():
    return sorted(Group.objects.values_list("name", flat=True))


@pytest.fixture
def other(parameters):
    """A session of somebody else."""
    with psycopg.connect(**parameters) as other:
        yield other


@pytest.mark.spec("S80")
def test_writes_children_and_success_commit_together(work, body, shared):
    running = work()
    states = []

    def handler():
        write()
        child = jobs.add.enqueue(1, 2)
        shared.events["written"].set()
        shared.events["go"].wait(20)
        return child.id

    job = jobs.atomically.enqueue(body(handler))
    assert shared.events["written"].wait(20)
    states.append((effects(), Job.objects.count(), Job.objects.get(pk=job.id).state))
    shared.events["go"].set()
    row = running.final(job)
    assert states == [([], 1, State.RUNNING)]
    assert (row.state, effects()) == (State.SUCCEEDED, ["effect"])
    assert [a.outcome for a in attempts(job)] == ["SUCCEEDED"]
    child = running.final(int(row.result))
    assert (child.result, child.parent) == (3, row.pk)
    running.quiet()
    assert running.worker.registry.counts[Fate.COMPLETED] == 2


@pytest.mark.spec("S80", "S81")
def test_a_failure_rolls_back_writes_and_children(work, body):
    running = work()

    def handler():
        write()
        jobs.add.enqueue(1, 2)
        raise ValueError("no")

    row = running.final(jobs.atomically.using(max_attempts=1).enqueue(body(handler)))
    assert (row.state, effects(), Job.objects.count()) == (State.DEAD, [], 1)
    assert "ValueError: no" in row.last_error


@pytest.mark.spec("S80", "S67", "A13")
def test_a_lost_lease_rolls_everything_back(work, body, shared):
    running = work()

    def handler():
        write()
        jobs.add.enqueue(1, 2)
        shared.events["written"].set()
        shared.events["go"].wait(20)

    job = jobs.atomically.enqueue(body(handler))
    assert shared.events["written"].wait(20)
    # What a leader's reclaim leaves: the row waits, the history says LOST.
    token, worker = sql("SELECT lease_token, worker FROM jobqueue_job WHERE id = %s", job.id)[0]
    sql(
        "UPDATE jobqueue_job SET state = 'SCHEDULED', run_at = now() + '1 hour', worker = NULL, "
        "lease_token = NULL, lease_expires_at = NULL, claimed_at = NULL, attempts = 1, "
        "failures = 1 WHERE id = %s",
        job.id,
    )
    Attempt.objects.create(
        token=token,
        job_id=job.id,
        number=1,
        worker=worker,
        outcome="LOST",
        started_at=Job.objects.get(pk=job.id).enqueued_at,
        finished_at=Job.objects.get(pk=job.id).enqueued_at,
        recorded_by="leader",
    )
    shared.events["go"].set()
    # A beat in between has it interrupted before it comes to record its success.
    late = ["SUCCEEDED", "INTERRUPTED"]
    attempt = running.wait(lambda: Attempt.objects.filter(late_outcome__in=late).first())
    assert attempt.outcome == "LOST"
    assert (effects(), Job.objects.count()) == ([], 1)
    assert Job.objects.get(pk=job.id).state == State.SCHEDULED
    running.wait(lambda: len(running.worker.registry) == 0)
    assert running.worker.registry.counts[Fate.UNRECORDED] == 1


@pytest.mark.spec("S80", "S123", "D118")
def test_a_row_that_somebody_holds_is_waited_for(work, body, shared, other):
    running = work()

    def handler():
        write()
        shared.events["written"].set()
        shared.events["go"].wait(20)

    job = jobs.atomically.enqueue(body(handler))
    assert shared.events["written"].wait(20)
    other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [int(job.id)])
    shared.events["go"].set()
    inflight = running.inflight(job)
    running.wait(lambda: inflight.recording is not None)
    assert running.final(jobs.add.enqueue(1, 2)).result == 3  # it holds up nobody
    assert Job.objects.get(pk=job.id).state == State.RUNNING
    other.rollback()
    assert running.final(job).state == State.SUCCEEDED
    assert [a.outcome for a in attempts(job)] == ["SUCCEEDED"]
    assert effects() == ["effect"]


@pytest.mark.spec("S80", "S122")
def test_a_shutdown_does_not_wait_for_a_row_that_somebody_holds(work, body, shared, other):
    running = work(drain_seconds=0.0)

    def handler():
        write()
        shared.events["written"].set()
        shared.events["go"].wait(20)

    job = jobs.atomically.enqueue(body(handler))
    assert shared.events["written"].wait(20)
    other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [int(job.id)])
    inflight = running.inflight(job)
    shared.events["go"].set()
    running.wait(lambda: inflight.recording is not None)
    running.on_loop(running.worker.shutdown.request, "signal")
    running.wait(lambda: inflight.ended)
    other.rollback()
    assert running.stop() == 0
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.failures, effects()) == (State.READY, 0, [])


class CutAtCommit:
    """Ends the session of an atomic handler around its COMMIT, as a dying network would."""

    def __init__(self, monkeypatch, *, before, times=1):
        self.cuts = 0
        wrapper = type(connections["default"])
        commit = wrapper._commit

        def cut(this):
            if this.connection is not None and threading.current_thread().name.startswith(
                "handler-"
            ):
                self.cuts += 1
                if self.cuts <= times:
                    if not before:
                        commit(this)
                    this.connection.pgconn.finish()
                    raise psycopg.OperationalError("consuming input failed: cut")
            commit(this)

        def _commit(this):
            if this.connection is not None:
                with this.wrap_database_errors:
                    cut(this)

        monkeypatch.setattr(wrapper, "_commit", _commit)


@pytest.mark.spec("S69", "S82", "A13")
def test_a_commit_whose_answer_was_cut_off_but_that_happened_is_a_success(work, body, monkeypatch):
    running = work()
    cut = CutAtCommit(monkeypatch, before=False)
    job = jobs.atomically.enqueue(body(write))
    row = running.final(job)
    running.quiet()
    assert cut.cuts == 1
    assert (row.state, effects(), row.attempts) == (State.SUCCEEDED, ["effect"], 1)
    assert [a.outcome for a in attempts(job)] == ["SUCCEEDED"]
    assert running.worker.registry.counts[Fate.COMPLETED] == 1


@pytest.mark.spec("S68", "S82", "A13")
def test_a_commit_that_was_cut_off_before_it_happened_runs_again_uncounted(work, body, monkeypatch):
    running = work()
    cut = CutAtCommit(monkeypatch, before=True)
    job = jobs.atomically.enqueue(body(write))
    row = running.final(job)
    assert cut.cuts == 2
    assert (row.state, effects(), row.failures) == (State.SUCCEEDED, ["effect"], 0)
    lost, done = attempts(job)
    assert [lost.outcome, done.outcome] == ["INTERRUPTED", "SUCCEEDED"]
    assert lost.error_message.startswith("connection lost at COMMIT: ")
    assert done.started_at - lost.finished_at >= timedelta(seconds=1)


def test_a_commit_that_never_lands_waits_longer_each_time_and_counts_from_the_third_on(
    work, body, monkeypatch
):
    """A balancer that drops idle connections, say: else it would run again and again for ever."""
    monkeypatch.setattr(classify, "LEAST_SECONDS", 0.05)
    running = work(backoff_base_seconds=0.1)
    cut = CutAtCommit(monkeypatch, before=True, times=99)
    job = jobs.atomically.using(max_attempts=3).enqueue(body(write))
    row = running.final(job)
    history = attempts(job)
    assert [a.outcome for a in history] == ["INTERRUPTED"] * 2 + ["FAILED"] * 3
    assert (row.state, row.reason, row.failures) == (State.DEAD, Reason.ATTEMPTS_SPENT, 3)
    assert (cut.cuts, effects()) == (5, [])
    assert all(a.error_message.startswith("connection lost at COMMIT: ") for a in history)
    pauses = [b.started_at - a.finished_at for a, b in pairwise(history)]
    for pause, at_least in zip(pauses, [0.08, 0.16, 0.32, 0.64], strict=True):
        assert pause >= timedelta(seconds=at_least)


def test_other_failures_and_shutdowns_do_not_stand_in_the_row(work, body, monkeypatch):
    """Two lost commits, a failure, two more: none of the four counts."""
    monkeypatch.setattr(classify, "LEAST_SECONDS", 0.05)
    running = work()
    cut, runs = CutAtCommit(monkeypatch, before=True, times=4), []

    def handler():
        runs.append(1)
        if len(runs) == 3:
            raise ValueError
        write()

    row = running.final(jobs.atomically.using(max_attempts=2).enqueue(body(handler)))
    assert (row.state, row.failures, cut.cuts) == (State.SUCCEEDED, 1, 5)
    outcomes = [a.outcome for a in attempts(row.pk)]
    lost = ["INTERRUPTED"] * 2
    assert outcomes == [*lost, "FAILED", *lost, "SUCCEEDED"]


def test_a_transaction_that_the_server_ends_at_its_commit_does_not_spin(work, body, monkeypatch):
    """A deadlock out of a deferred trigger."""
    monkeypatch.setattr(classify, "LEAST_SECONDS", 0.05)
    sql(
        "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'as two of them would' USING ERRCODE = '40P01'; END $$"
    )
    sql(
        "CREATE CONSTRAINT TRIGGER deadlock AFTER INSERT ON auth_group DEFERRABLE"
        " INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION deadlock()"
    )
    try:
        running = work()
        row = running.final(jobs.atomically.using(max_attempts=2).enqueue(body(write)))
    finally:
        sql("DROP FUNCTION deadlock CASCADE")
    assert (row.state, row.failures, effects()) == (State.DEAD, 2, [])
    assert [a.outcome for a in attempts(row.pk)] == ["INTERRUPTED"] * 2 + ["FAILED"] * 2


@pytest.mark.spec("S82", "S87")
def test_a_hook_that_fails_after_the_commit_undoes_nothing(work, body):
    running = work()

    def handler():
        write()
        transaction.on_commit(lambda: 1 / 0)

    with captured() as entries:
        job = jobs.atomically.enqueue(body(handler))
        row = running.final(job)
        running.quiet()
    errors = [e["event"] for e in entries if e["log_level"] == "error"]
    assert errors == ["on_commit_hook_failed"]
    assert (row.state, row.last_error, effects()) == (State.SUCCEEDED, "", ["effect"])
    assert running.worker.registry.counts[Fate.COMPLETED] == 1


@pytest.mark.spec("S79")
def test_what_has_committed_has_no_lease_to_keep(work, body, shared):
    """A hook of the commit that outlasts the lease, such as a mail server that hangs, ends neither
    the worker nor the jobs beside it."""
    running = work(
        concurrency=3,
        lease_seconds=3.0,
        heartbeat_seconds=0.3,
        cancel_seconds=0.5,
        drain_seconds=1.0,
    )
    stop = shared.events["stop"]

    def handler():
        write()
        transaction.on_commit(lambda: stop.wait(30) and jobs.note("hook"))

    async def neighbour():
        while not stop.is_set():
            await asyncio.sleep(0.01)

    with captured() as entries:
        beside = jobs.acall.enqueue(body(neighbour))
        job = jobs.atomically.enqueue(body(handler))
        inflight = running.wait(lambda: running.inflight(job))
        running.wait(lambda: inflight.committed)
        committed = time.monotonic()
        trust = running.settings.trust_seconds
        running.wait(lambda: time.monotonic() > committed + trust + 0.5)
        stop.set()
        assert running.final(job).state == State.SUCCEEDED
        row = running.final(beside)
        running.quiet()
    assert (row.state, row.attempts) == (State.SUCCEEDED, 1)
    assert "lease_not_renewed" not in {entry["event"] for entry in entries}
    assert shared.notes == ["hook"]


@pytest.mark.spec("S80")
def test_a_constraint_that_is_checked_at_the_commit_is_a_counted_failure(work, body):
    running = work()
    sql(
        "CREATE TABLE later (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); "
        "INSERT INTO later VALUES (1)"
    )
    try:
        handler = body(lambda: write() or jobs.query("INSERT INTO later VALUES (1)"))
        row = running.final(jobs.atomically.using(max_attempts=2).enqueue(handler))
        assert (row.state, row.attempts, row.failures) == (State.DEAD, 2, 2)
        assert "IntegrityError" in row.last_error
        assert effects() == []
    finally:
        sql("DROP TABLE later")


@pytest.mark.spec("S80", "S90")
@pytest.mark.parametrize("value", ["x" * 2_000_000, {1, 2}, "a\0b"])
def test_a_result_that_cannot_be_stored_rolls_back_and_is_final(work, body, value):
    running = work()
    row = running.final(jobs.atomically.enqueue(body(lambda: write() or value)))
    assert (row.state, row.reason, row.attempts) == (State.DEAD, Reason.BAD_RESULT, 1)
    assert effects() == []


@pytest.mark.spec("S80")
def test_a_swallowed_database_error_is_a_failure_not_a_success(work, body):
    running = work()

    def handler():
        write()
        with contextlib.suppress(DatabaseError):
            jobs.query("SELECT nonsense")

    def closes():
        write()
        connection.close()

    for function in (handler, closes):
        row = running.final(jobs.atomically.using(max_attempts=1).enqueue(body(function)))
        assert (row.state, effects()) == (State.DEAD, [])
    assert open_transactions() == []


def _forgets_its_connection():
    del connections["default"]


def _rolls_back():
    jobs.query("ROLLBACK")


def _rolls_back_in_the_driver():
    connection.connection.rollback()


def _goes_on_in_another():
    jobs.query("ROLLBACK AND CHAIN")


def _commits_and_begins_another():
    jobs.query("COMMIT")
    jobs.query("BEGIN")


@pytest.mark.spec("S80", "S81")
@pytest.mark.parametrize(
    "end",
    [
        _forgets_its_connection,
        _rolls_back,
        _rolls_back_in_the_driver,
        _goes_on_in_another,
        _commits_and_begins_another,
    ],
)
def test_a_handler_that_ends_its_own_transaction_has_failed(work, body, end):
    """A success would be recorded in another one, which has none of the effects."""
    running = work()

    def handler():
        write("before")
        end()
        write("after")

    row = running.final(jobs.atomically.using(max_attempts=1).enqueue(body(handler)))
    assert (row.state, row.failures, [a.outcome for a in attempts(row)]) == (
        State.DEAD,
        1,
        ["FAILED"],
    )
    assert "The transaction in which this atomic task began has ended before it" in row.last_error
    # What a handler commits itself, and what it writes on a connection of its own, stays.
    kept = {_commits_and_begins_another: ["before"], _forgets_its_connection: ["after"]}
    assert effects() == kept.get(end, [])
    running.wait(lambda: open_transactions() == [])


@pytest.mark.spec("S80")
def test_a_savepoint_that_is_rolled_back_is_no_end_of_the_transaction(work, body):
    running = work()

    def handler():
        write("kept")
        with contextlib.suppress(ValueError), transaction.atomic():
            write("dropped")
            raise ValueError
        jobs.query("SET LOCAL statement_timeout = 0")

    assert running.final(jobs.atomically.enqueue(body(handler))).state == State.SUCCEEDED
    assert effects() == ["kept"]


@pytest.mark.spec("S80")
def test_only_what_was_committed_has_succeeded(work, body, monkeypatch):
    """A check refuses AUTOCOMMIT = False; should it get past that, no success is reported."""
    running = work()
    connection.ensure_connection()  # the test's own, which enqueues
    monkeypatch.setitem(connections.settings["default"], "AUTOCOMMIT", False)
    with captured() as entries:
        row = running.final(jobs.atomically.using(max_attempts=2).enqueue(body(write)))
        running.quiet()
    assert (row.state, row.failures, effects()) == (State.DEAD, 2, [])
    assert [a.outcome for a in attempts(row)] == ["FAILED", "FAILED"]
    assert "has ended without a commit" in row.last_error
    assert "job_succeeded" not in {entry["event"] for entry in entries}
    running.wait(lambda: open_transactions() == [])


def test_the_transaction_has_the_level_of_the_settings(work, body, monkeypatch):
    level = IsolationLevel.SERIALIZABLE
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "isolation_level", level)
    running = work()
    handler = body(lambda: jobs.query("SHOW transaction_isolation")[0])
    assert running.final(jobs.atomically.enqueue(handler)).result == "serializable"


@pytest.mark.spec("S80")
def test_the_mark_of_the_transaction_costs_no_round_trip(work, body):
    """A handler may still say how its transaction is to be, which only the first query forbids."""
    running = work()

    def handler():
        jobs.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return jobs.query("SELECT current_setting('jobqueue.attempt')")[0]

    row = running.final(jobs.atomically.enqueue(body(handler)))
    assert (row.state, row.result) == (State.SUCCEEDED, str(attempts(row)[0].token))


@pytest.mark.spec("S80", "S82")
def test_an_interrupt_rolls_back(work, body, shared):
    running = work()

    def handler():
        write()
        shared.events["written"].set()
        while True:
            pass

    job = jobs.atomically.enqueue(body(handler))
    assert shared.events["written"].wait(20)
    operations.cancel(Job.objects.get(pk=job.id))
    assert running.final(job).state == State.CANCELLED
    assert (effects(), open_transactions()) == ([], [])


@pytest.mark.spec("S64", "S82", "A13")
def test_no_interrupt_lands_between_the_last_line_and_the_commit(work, body, shared, other):
    """Timed out while its success is on the way: what was reached is committed."""
    running = work(cancel_seconds=0.2)

    def handler():
        write()
        shared.events["written"].set()
        shared.events["go"].wait(20)

    job = jobs.atomically.enqueue(body(handler))
    assert shared.events["written"].wait(20)
    other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [int(job.id)])
    inflight = running.inflight(job)
    shared.events["go"].set()
    running.wait(lambda: inflight.recording is not None)
    for why in (classify.Stop.TIMEOUT, classify.Stop.CANCEL, classify.Stop.TIMEOUT):
        running.on_loop(running.executor.stop, inflight, why)
        time.sleep(0.3)
    other.rollback()
    assert running.final(job).state == State.SUCCEEDED
    assert [a.outcome for a in attempts(job)] == ["SUCCEEDED"]
    assert effects() == ["effect"]


@pytest.mark.spec("S82")
# Interrupted between connecting and keeping the connection: it closes as it is collected.
@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
def test_interrupts_raced_against_the_commit_leave_effect_and_state_agreed(work, body, request):
    """The handler ends just when its timeout does."""
    rounds = 1_000 if request.config.getoption("--long") else 60
    running = work(concurrency=4)

    def handler(number, seconds):
        write(str(number))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    name = body(handler)
    once = jobs.atomically.using(max_attempts=1, timeout=0.05)
    waiting = {n: once.enqueue(name, n, 0.06 * (n % 10) / 10) for n in range(rounds)}
    states = {number: running.final(job, 120).state for number, job in waiting.items()}
    assert set(states.values()) <= {State.SUCCEEDED, State.DEAD}
    assert effects() == sorted(str(n) for n, state in states.items() if state == State.SUCCEEDED)
    assert open_transactions() == []
    assert not active("pg_sleep")


def test_coroutines_are_refused():
    with pytest.raises(InvalidTask, match="atomic needs a plain function"):
        jobs.aadd.using(atomic=True)


@pytest.mark.spec("S80")
def test_a_job_stored_as_atomic_whose_task_became_a_coroutine_does_not_run(work):
    job = jobs.aadd.using(run_after=FAR).enqueue(1, 2)
    Job.objects.filter(pk=job.id).update(options={"atomic": True}, state=State.READY)
    row = work().final(job)
    assert (row.state, row.reason) == (State.DEAD, Reason.PERMANENT)
    assert "cannot run atomically" in row.last_error


@pytest.mark.spec("S83")
def test_no_connection_to_begin_with_is_nobodys_failure(work, body, monkeypatch):
    running = work()
    monkeypatch.setattr(classify, "NO_CONNECTION_SECONDS", 0.1)
    wrapper, refused = type(connections["default"]), []
    ensure = wrapper.ensure_connection

    def refuse(this):
        if threading.current_thread().name.startswith("handler-") and len(refused) < 2:
            refused.append(this)
            with this.wrap_database_errors:
                raise psycopg.OperationalError("sorry, too many clients already")
        ensure(this)

    monkeypatch.setattr(wrapper, "ensure_connection", refuse)
    job = jobs.atomically.enqueue(body(write))
    waiting = running.wait(
        lambda: Job.objects.filter(pk=job.id, reason=Reason.NO_CONNECTION).first()
    )
    assert (waiting.state, waiting.failures, waiting.attempts) == (State.SCHEDULED, 0, 0)
    assert "too many clients" in waiting.last_error
    row = running.final(job, 50)
    assert (row.state, row.attempts, effects()) == (State.SUCCEEDED, 1, ["effect"])


@pytest.fixture
def repeatable_read(parameters):
    """As a project may have it for the whole database."""
    database = parameters["dbname"]
    sql(f"ALTER DATABASE \"{database}\" SET default_transaction_isolation = 'repeatable read'")
    yield
    sql(f'ALTER DATABASE "{database}" RESET default_transaction_isolation')


@pytest.mark.spec("S80", "S82")
def test_a_transaction_that_no_renewal_may_touch_fails_honestly_when_it_outlives_a_beat(
    repeatable_read, work, body, shared
):
    """Counted and put off, not run again and again at once; a short one is not concerned."""
    running = work(heartbeat_seconds=0.2, backoff_base_seconds=600.0)

    def long():
        write()
        lease = Job.objects.get().lease_expires_at
        shared.extra["lease"] = lease
        shared.events["begun"].set()
        shared.events["go"].wait(20)

    job = jobs.atomically.enqueue(body(long))
    assert shared.events["begun"].wait(20)
    running.wait(lambda: Job.objects.get().lease_expires_at > shared.extra["lease"])
    shared.events["go"].set()
    row = running.state(job, State.SCHEDULED)
    (attempt,) = attempts(job)
    assert (attempt.outcome, row.failures, effects()) == ("FAILED", 1, [])
    assert "Use READ COMMITTED" in row.last_error
    brief = jobs.atomically.enqueue(body(write))
    assert running.final(brief).state == State.SUCCEEDED
    assert effects() == ["effect"]
