"""ClaimRound, wakes and waits; and what becomes of a round whose answer is lost."""

import asyncio
import random

import pytest

from jobqueue import notify
from jobqueue.conf import Settings
from jobqueue.store import claims, server_process
from jobqueue.store.connections import Session
from jobqueue.worker.claiming import queue_pauses
from jobqueue.worker.inflight import Fate
from tests.events import captured
from tests.rows import add_job, ahead, job_row, one
from tests.waiting import until
from tests.worker.faults import end
from tests.worker.intake import make, proxy

__all__ = ["make", "proxy"]


async def running(connection):
    return await one(connection, "SELECT count(*) FROM jobqueue_job WHERE state = 'RUNNING'")


@pytest.mark.spec("S37", "S38", "S39", "A2")
async def test_exactly_the_free_slots_are_claimed(make, connection):
    for _ in range(8):
        await add_job(connection)
    intake = make()
    intake.run()
    await until(lambda: len(intake.started()) == 3)
    intake.claimer.wake("default")
    assert await running(connection) == len(intake.registry) == 3


@pytest.mark.spec("S44", "S46")
async def test_a_freed_slot_claims_at_once(make, connection):
    for _ in range(8):
        await add_job(connection)
    intake = make(Settings(poll_seconds=600.0, notify=True, concurrency=1))
    intake.run()
    for count in range(1, 9):
        await until(lambda count=count: len(intake.started()) == count)
        intake.end_all()


@pytest.mark.spec("S43")
async def test_a_wake_during_a_round_causes_another(make, connection, monkeypatch):
    intake, claim, sent = make(), claims.claim, []

    async def first_is_slow(*args):
        rows = await claim(*args)
        if len(sent) < 2:  # one for each queue
            await add_job(connection)
            intake.claimer.wake("default")
        sent.append(args)
        return rows

    monkeypatch.setattr(claims, "claim", first_is_slow)
    intake.run()
    await until(lambda: len(intake.started()) == 2)


@pytest.mark.spec("S41")
async def test_without_any_wake_the_poll_finds_all_and_promotes_what_is_due(make, connection):
    intake = make(Settings(poll_seconds=0.2, concurrency=5))
    intake.run()
    await until(lambda: intake.claimer._polled_at > 0)
    await add_job(connection, queue="mail")
    await add_job(connection, state="SCHEDULED", run_at=ahead(0.1))
    await until(lambda: len(intake.started()) == 2)


@pytest.mark.spec("S41", "S46")
async def test_steady_wakes_do_not_keep_the_poll_away(make, connection):
    intake = make(Settings(poll_seconds=0.2, concurrency=5))
    await add_job(connection, state="SCHEDULED", run_at=ahead(0.3))
    intake.run()

    def found():
        intake.claimer.wake("default")
        return intake.started()

    await until(found)


async def test_without_proven_notifications_the_worker_polls_each_second(make, connection):
    intake = make()
    intake.claimer.is_notified = lambda: False
    intake.run()
    await until(lambda: intake.claimer._polled_at > 0)
    await add_job(connection)
    await until(intake.started, seconds=10)


@pytest.mark.spec("S42")
async def test_each_wait_for_the_poll_is_jittered_anew(make):
    intake = make(Settings(poll_seconds=0.05))
    intake.run()
    seen = set()
    await until(lambda: seen.add(intake.claimer._jitter) or len(seen) > 5)
    assert all(jitter == 1.0 or 0.8 <= jitter <= 1.2 for jitter in seen)


@pytest.mark.spec("S49", "S50", "S51")
async def test_a_round_in_flight_at_the_stop_is_returned_unstarted(make, connection, monkeypatch):
    jobs = [await add_job(connection) for _ in range(2)]
    intake, claim = make(), claims.claim

    async def stopped_meanwhile(*args):
        rows = await claim(*args)
        intake.claimer.stop()
        return rows

    monkeypatch.setattr(claims, "claim", stopped_meanwhile)
    intake.run()
    await intake.tasks[0]
    assert not intake.started()
    await until(lambda: len(intake.recorded.written_) == 2)
    for job in jobs:
        row = await job_row(connection, job)
        assert (row["state"], row["attempts"], row["started_at"]) == ("READY", 0, None)
    assert intake.registry.counts[Fate.RETURNED] == 2


@pytest.mark.spec("S49")
async def test_no_claim_is_sent_after_the_stop(make, connection):
    await add_job(connection)
    intake = make()
    intake.claimer.stop()
    intake.run()
    await intake.tasks[0]
    assert await running(connection) == 0


@pytest.mark.spec("S52")
async def test_an_answer_that_comes_too_late_starts_nothing(make, connection, proxy):
    short = Settings(lease_seconds=0.5, heartbeat_seconds=0.1, cancel_seconds=0.0, concurrency=3)
    intake = make(short)
    await intake.claimer.session.open(5)
    await intake.completer.session.open(5)
    job = await add_job(connection, queue="mail")
    proxy.only, proxy.delay = "claim", (0.6, 0.6)
    intake.run()
    await until(lambda: intake.handlers.returned)
    proxy.heal()
    assert not intake.started() or intake.started() == [job]


@pytest.fixture
def lose_the_answer(proxy, monkeypatch):
    """Of the first claim only."""
    claim, sent = claims.claim, []

    async def lost(*args):
        if not sent:
            proxy.only, proxy.swallow_answers = "claim", True
        sent.append(args)
        return await claim(*args)

    monkeypatch.setattr(claims, "claim", lost)
    return sent


@pytest.mark.spec("S53", "S101", "A6")
@pytest.mark.parametrize("fault", ["silence", "cut"])
async def test_a_round_whose_answer_is_lost_goes_back_uncounted(
    make, connection, proxy, fault, lose_the_answer, monkeypatch
):
    jobs = [await add_job(connection, max_attempts=1) for _ in range(3)]
    intake = make()
    if fault == "silence":
        monkeypatch.setattr("jobqueue.worker.claiming.claim_round.CALL_SECONDS", 0.5)
    intake.run()
    # Committed at the server; the answer never comes.
    await until(lambda: _is_running(connection, 3))
    if fault == "cut":
        proxy.cut()
    proxy.heal()
    await until(lambda: len(intake.recorded.written_) == 3)
    assert [outcome for _, outcome, _ in intake.recorded.written_] == [None] * 3
    # Now they run, each for the first time.
    intake.claimer.wake()
    await until(lambda: len(intake.started()) == 3)
    for job in jobs:
        row = await job_row(connection, job)
        assert (row["state"], row["attempts"]) == ("RUNNING", 0)
    assert {inflight.token for inflight in intake.handlers.started}.isdisjoint(
        inflight.token for inflight in intake.handlers.returned
    )


async def _is_running(connection, count):
    return await running(connection) == count


@pytest.mark.spec("S37", "S53")
async def test_the_statement_of_a_lost_round_is_ended_before_anything_else_is_claimed(
    make, connection, connect, proxy, monkeypatch
):
    """It waits for a lock that a stranger holds: left alone, it would bring its rows later."""
    job, other = await add_job(connection), await connect()
    intake = make()
    await intake.claimer.session.open(5)
    monkeypatch.setattr("jobqueue.worker.claiming.claim_round.CALL_SECONDS", 0.5)
    pid = intake.claimer.first_round.backend.pid
    async with other.transaction():
        await other.execute("LOCK TABLE jobqueue_queue IN ACCESS EXCLUSIVE MODE")
        intake.run()
        await until(lambda: len(intake.claimer._lost_claims) > 0 or None)
        await until(lambda: _is_gone(connection, pid))
    await until(lambda: intake.started() == [job])
    assert await running(connection) == 1


async def _is_gone(connection, pid):
    gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
    return await one(connection, gone, pid)


@pytest.mark.spec("S101", "S53")
async def test_where_the_old_session_cannot_be_found_rows_that_turn_up_late_are_released(
    make, connection, proxy, monkeypatch
):
    """As behind a pooler: nobody knows whether the statement is still on its way."""
    job = await add_job(connection, max_attempts=1)
    intake, late = make(), []

    async def pooled(connection):
        return server_process.ServerProcess(1, None, "", direct=False)

    async def never_sent(own, queue, worker, tokens, lease, after):
        late.append((queue, worker, tokens, lease))
        proxy.cut()
        await own.execute("SELECT 1")

    claim = claims.claim
    monkeypatch.setattr(server_process, "of_connection", pooled)
    monkeypatch.setattr(claims, "claim", never_sent)
    monkeypatch.setattr("jobqueue.worker.claiming.lost_claims.QUERY_SECONDS", 0.05)
    intake.run()
    await until(lambda: late)
    monkeypatch.setattr(claims, "claim", _nothing)
    # The worker has asked in vain and works on; then the lost statement happens after all.
    await until(lambda: intake.claimer._lost_claims._next_query_at > 0)
    rows = await claim(connection, "default", *late[0][1:])
    assert [row.id for row in rows] == [job]
    await until(lambda: intake.recorded.written_ == [(job, None, "READY")])
    assert intake.handlers.returned_at_once == [False]
    assert not intake.started()
    assert (await job_row(connection, job))["attempts"] == 0


async def _nothing(*args):
    return []


@pytest.mark.spec("S53")
async def test_a_round_cut_by_the_deadline_is_returned_by_the_recovery(
    make, connection, proxy, lose_the_answer
):
    job = await add_job(connection)
    intake = make()
    intake.run()
    await until(lambda: _is_running(connection, 1))
    intake.claimer.stop()
    await end(intake.tasks[0])
    proxy.heal()
    await intake.claimer.recover_lost()
    await until(lambda: intake.recorded.written_ == [(job, None, "READY")])


@pytest.mark.spec("S47")
async def test_wakes_do_not_hurry_a_claimer_during_an_outage(make, proxy, monkeypatch):
    intake, tries, opened = make(), [], Session.open

    async def counted(session, seconds):
        tries.append(1)
        return await opened(session, seconds)

    monkeypatch.setattr(Session, "open", counted)
    proxy.refuse = True
    intake.run()
    for _ in range(200):
        intake.claimer.wake()
        await asyncio.sleep(0)
    await until(lambda: intake.outage_log._troubled)
    for _ in range(200):
        intake.claimer.wake()
        await asyncio.sleep(0)
    assert len(tries) < 5


@pytest.mark.spec("S48", "D85")
@pytest.mark.parametrize("good_rounds_between", [False, True])
async def test_the_fifth_bug_in_a_row_ends_the_service(
    make, connection, monkeypatch, good_rounds_between
):
    intake, calls, claim = make(), [], claims.claim

    async def broken(*args):
        calls.append(1)
        if good_rounds_between and len(calls) % 4 == 0:
            return await claim(*args)
        raise ZeroDivisionError

    monkeypatch.setattr(claims, "claim", broken)
    monkeypatch.setattr(random, "uniform", lambda low, high: low / 100)
    intake.run()
    if good_rounds_between:
        await until(lambda: intake.claimer.wake() or len(calls) > 12)
        assert not intake.tasks[0].done()
    else:
        await until(intake.tasks[0].done)
        assert isinstance(intake.tasks[0].exception(), ZeroDivisionError)
        assert len(calls) == 5


def test_a_job_with_a_skipped_wake_is_claimed_later_than_its_commit():
    assert queue_pauses.THIN_SECONDS >= notify.THIN_SECONDS
    assert 0.9 * queue_pauses.PAUSE_SECONDS > queue_pauses.THIN_SECONDS


@pytest.mark.spec("S41")
async def test_a_job_whose_wake_was_skipped_does_not_wait_for_the_poll(
    make, connection, monkeypatch
):
    """Committed after the claim that another job's wake caused, and without a notification."""
    monkeypatch.setattr(queue_pauses, "THIN_SECONDS", 5.0)  # for a busy machine
    intake, claim, later = make(), claims.claim, []

    async def behind_the_look(*args):
        rows = await claim(*args)
        if intake.claimer._pauses._woken_at and not later:
            later.append(await add_job(connection))
        return rows

    intake.run()
    await until(lambda: intake.claimer._polled_at > 0 and not intake.claimer.selector._ready)
    monkeypatch.setattr(claims, "claim", behind_the_look)
    intake.claimer.wake("default", 0)
    await until(lambda: later and intake.started() == later)


@pytest.mark.spec("S44", "D8")
@pytest.mark.parametrize("is_full", [False, True])
async def test_a_job_put_off_for_a_moment_starts_when_due_without_poll_or_leader(
    make, connection, is_full
):
    jobs = [await add_job(connection) for _ in range(3 * is_full)]
    intake, notified = make(), []
    intake.claimer.is_overdue, intake.claimer.notify_ready = (lambda: False), notified.append
    intake.run()
    await until(lambda: intake.claimer._polled_at > 0 and intake.started() == jobs)
    retried = await add_job(connection, state="SCHEDULED", run_at=ahead(0.1))
    intake.claimer.promote_in(0.1)
    if is_full:  # somebody else may have room
        await until(lambda: notified == ["default"])
        assert intake.started() == jobs
        intake.end_all()
    await until(lambda: intake.started() == [*jobs, retried])
    assert notified == ["default"] * is_full


async def test_other_workers_are_notified_of_promoted_jobs_of_their_queues(make, connection):
    intake, notified = make(), []
    intake.claimer.notify_ready = notified.append
    intake.run()
    await until(lambda: intake.claimer._polled_at > 0)
    await add_job(connection, state="SCHEDULED", queue="reports", run_at=ahead(0.05))
    intake.claimer.promote_in(0.05)
    await until(lambda: notified == ["reports"])


@pytest.mark.spec("S49")
async def test_a_stop_between_the_wake_and_the_round_is_no_error(make, connection, monkeypatch):
    """Its connection is just being opened: nothing is sent, and nothing is complained of."""
    intake, opened = make(), Session.open

    async def stopped_meanwhile(session, seconds):
        connection = await opened(session, seconds)
        intake.claimer.stop()
        return connection

    monkeypatch.setattr(Session, "open", stopped_meanwhile)
    with captured() as logs:
        intake.run()
        await intake.tasks[0]
    assert "service_failed" not in [log["event"] for log in logs]


MANY = [f"queue{number}" for number in range(1_000)]


@pytest.fixture
def asked(monkeypatch):
    """The queues that were asked for jobs, in order."""
    asked, claim = [], claims.claim

    async def noted(connection, queue, *rest):
        asked.append(queue)
        return await claim(connection, queue, *rest)

    monkeypatch.setattr(claims, "claim", noted)
    return asked


async def test_waiting_costs_the_same_with_one_queue_as_with_a_thousand(make, connection, asked):
    intake = make(Settings(poll_seconds=0.1), queues=MANY)
    intake.run()
    polls = set()
    await until(lambda: polls.add(intake.claimer._polled_at) or len(polls) > 5)
    assert asked == []
    job = await add_job(connection, queue=MANY[700])
    await until(lambda: intake.started() == [job])
    assert set(asked) == {MANY[700]}


async def test_a_wake_and_an_error_ask_no_empty_queue_of_many(make, connection, asked):
    intake = make(queues=MANY)
    intake.run()
    await until(lambda: intake.claimer._polled_at > 0)
    job = await add_job(connection, queue=MANY[3])
    intake.claimer.wake()  # whatever it was, as after a reconnect of the listener
    await until(lambda: intake.started() == [job])
    late = await add_job(connection, queue=MANY[4])
    intake.claimer.wake(MANY[4], 0)
    await until(lambda: intake.started() == [job, late])
    assert set(asked) == {MANY[3], MANY[4]}


async def test_the_pause_of_one_queue_holds_up_no_other(make, connection, monkeypatch):
    monkeypatch.setattr(queue_pauses, "PAUSE_SECONDS", 5.0)
    names = MANY[:30]
    job_ids = [await add_job(connection, queue=name) for name in names]
    intake = make(Settings(poll_seconds=600.0, concurrency=29), queues=names)
    intake.run()
    await until(lambda: len(intake.started()) == 29, seconds=30)  # one after another: 150 s
    assert set(intake.started()) < set(job_ids)
    await until(lambda: not intake.claimer.selector._resting, seconds=30)
