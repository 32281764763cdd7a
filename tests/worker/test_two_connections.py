"""Two connections that claim in turn: what is shared between them, and what happens to either."""

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import psycopg
import pytest
import pytest_asyncio
from django.db import connections

from jobqueue.models import Job
from jobqueue.store import claims, finish_and_claim
from jobqueue.store.connections import Session
from jobqueue.store.server_process import ServerProcess
from jobqueue.worker.claiming import scan_cursor
from jobqueue.worker.claiming.claim_round import new_tokens
from jobqueue.worker.claiming.queue_selector import QueueSelector
from jobqueue.worker.inflight import Fate
from tests.children import wait_until
from tests.events import captured
from tests.rows import add_job, ago, history, one
from tests.waiting import until
from tests.worker.faults import end
from tests.worker.intake import CALM, make, overcommitment, proxy
from tests.worker.running import sql

__all__ = ["make", "proxy"]

SLOTS = 6
SIX = replace(CALM, concurrency=SLOTS)
SECOND = "jobqueue claim 2"
CALL_SECONDS = 0.3
COUNT = 400


@pytest.fixture(autouse=True)
def two(monkeypatch):
    monkeypatch.setattr("jobqueue.worker.claiming.claimer.SECOND_CLAIM_SLOTS", 2)


@pytest_asyncio.fixture
async def slots(connection):
    async with overcommitment(connection, SLOTS) as most:
        yield most


class Sent(NamedTuple):
    """One statement of the claimer."""

    second: bool
    queue: str
    tokens: int
    onward: bool


@pytest.fixture
def sent(monkeypatch):
    """Every statement that claims, by either connection."""
    seen = []

    def noting(real):
        async def noted(connection, queue, worker, tokens, lease, after, *more):
            second = connection.info.get_parameters()["application_name"] == SECOND
            seen.append(Sent(second, queue, len(tokens), after is not None))
            return await real(connection, queue, worker, tokens, lease, after, *more)

        return noted

    monkeypatch.setattr(claims, "claim", noting(claims.claim))
    monkeypatch.setattr(
        finish_and_claim, "finish_and_claim", noting(finish_and_claim.finish_and_claim)
    )
    return seen


async def add(connection, count, queue="default", **columns):
    """Many jobs; returns their ids, in the queue's order."""
    first = await add_job(connection, queue=queue, **columns)
    cursor = await connection.execute(
        "INSERT INTO jobqueue_job (task, queue, priority, run_at) SELECT task, queue, priority, "
        "run_at FROM jobqueue_job, generate_series(2, %s) WHERE id = %s RETURNING id",
        [count, first],
    )
    return [first, *sorted([id for (id,) in await cursor.fetchall()])]


def quick(intake, seconds=0.0):
    """Handlers that succeed in their first step; with seconds, some that take up to this long. The
    finisher comes late, so that what they leave is written by the rounds."""
    loop, sleep = asyncio.get_running_loop(), intake.completer._sleep

    async def late():
        await sleep()
        await asyncio.sleep(0.005)

    def start(inflight):
        intake.handlers.started.append(inflight)
        if seconds and random.random() < 0.05:
            loop.call_later(random.uniform(0, seconds), intake.put, inflight)
        else:
            intake.put(inflight)

    intake.handlers.start, intake.completer._sleep = start, late


def completed(intake):
    return intake.registry.counts[Fate.COMPLETED]


async def states(connection, jobs):
    cursor = await connection.execute(
        "SELECT state FROM jobqueue_job WHERE id = ANY(%s) ORDER BY id", [jobs]
    )
    return [state for (state,) in await cursor.fetchall()]


def no_task_is_left():
    names = {task.get_name() for task in asyncio.all_tasks()}
    return not names & {"claim", "claim 2"}


async def start(intake):
    """With both connected, so that neither is ahead."""
    for session in intake.sessions:
        await session.open(5)
    intake.completer.on_ready = intake.claimer.wake
    intake.run()


async def both_work(intake, sent):
    await until(lambda: {one_sent.second for one_sent in sent} == {True, False})


# Slots and outcomes.


@pytest.mark.spec("S37", "S53", "S69", "S101", "S154")
@pytest.mark.parametrize("only", ["", "claim 2"])
@pytest.mark.parametrize("fault", ["cut", "silence", "lost answers"])
async def test_through_any_outage_each_job_ends_once_and_no_slot_is_given_twice(
    make, connection, proxy, slots, sent, monkeypatch, fault, only
):
    monkeypatch.setattr("jobqueue.worker.claiming.lost_claims.QUERY_SECONDS", 0.05)
    monkeypatch.setattr("jobqueue.worker.claiming.claim_round.CALL_SECONDS", CALL_SECONDS)
    monkeypatch.setattr("jobqueue.worker.outcomes.completer.WRITE_SECONDS", CALL_SECONDS)
    jobs = await add(connection, COUNT)
    intake = make(SIX, queues=["default"])
    quick(intake, 0.05)
    for service in (intake.claimer.error_policies[0], intake.claimer.error_policies[1]):
        service._backoff.most = 0.05
    intake.completer.error_policy._backoff.most = 0.05

    async def weather():
        while True:
            proxy.heal()
            await asyncio.sleep(random.uniform(0, 0.06 if fault == "cut" else 0.3))
            proxy.only = only
            if fault == "cut":
                proxy.cut()
            else:
                proxy.swallow = fault == "silence"
                proxy.swallow_answers = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(proxy.swallowed.wait(), 0.05)
                proxy.heal()
                await asyncio.sleep(CALL_SECONDS)  # until it has been noticed

    await start(intake)
    storm = asyncio.ensure_future(weather())
    try:
        await until(lambda: completed(intake) >= COUNT, seconds=60)
    finally:
        await end(storm)
    assert any(one_sent.second for one_sent in sent)
    assert await states(connection, jobs) == ["SUCCEEDED"] * COUNT
    attempts = [row["number"] for job in jobs for row in await history(connection, job)]
    assert attempts == [1] * COUNT
    assert sorted(intake.started()) == jobs
    assert intake.registry.counts[Fate.UNRECORDED] == 0
    assert intake.claimer.intake.slots_requested == 0
    assert await slots() is None


async def two_in_flight(make, connection, monkeypatch, then):
    """Six jobs have ended; the rounds that write them and take others go on when both are there."""
    jobs = await add(connection, 20)
    intake = make(SIX, queues=["default"])
    await start(intake)
    await until(lambda: len(intake.started()) == SLOTS)
    real, there = finish_and_claim.finish_and_claim, []

    async def both(*args):
        there.append(args)
        while len(there) < 2:
            await asyncio.sleep(0)
        answer = await real(*args)
        then(intake)
        return answer

    monkeypatch.setattr(finish_and_claim, "finish_and_claim", both)
    await end(intake.tasks[1])  # only the claimer may write
    for inflight in intake.registry:
        intake.put(inflight)
    intake.registry.freed.set()
    intake.claimer._second_wanted.set()  # both look at once
    return intake, jobs


@pytest.mark.spec("S49", "S50", "S51", "S70")
async def test_at_a_stop_in_the_middle_of_both_outcomes_stand_and_claims_go_back(
    make, connection, monkeypatch, slots
):
    intake, jobs = await two_in_flight(
        make, connection, monkeypatch, lambda intake: intake.claimer.stop()
    )
    await asyncio.wait_for(intake.tasks[0], 10)
    assert no_task_is_left()
    intake.tasks[1] = asyncio.ensure_future(intake.completer.run())
    await until(lambda: not len(intake.registry))
    assert await states(connection, jobs) == ["SUCCEEDED"] * 6 + ["READY"] * 14
    counts = intake.registry.counts
    assert (counts[Fate.COMPLETED], counts[Fate.RETURNED]) == (6, 6)
    assert intake.registry.claimed == 12
    assert len(intake.started()) == 6
    assert await slots() is None


@pytest.mark.spec("S50", "S53", "S102")
async def test_cut_off_by_the_deadline_both_leave_nothing_behind(
    make, connection, proxy, monkeypatch, slots
):
    intake, jobs = await two_in_flight(make, connection, monkeypatch, lambda intake: None)
    proxy.swallow_answers = True
    happened = ["SUCCEEDED"] * 6 + ["RUNNING"] * 6 + ["READY"] * 8
    await until(lambda: _are(connection, jobs, happened))
    intake.claimer.stop()
    await end(intake.tasks[0])
    assert no_task_is_left()
    assert len(intake.claimer._lost_claims) == 2
    proxy.heal()
    await intake.claimer.recover_lost()
    intake.tasks[1] = asyncio.ensure_future(intake.completer.run())
    intake.completer.close()
    await asyncio.wait_for(intake.tasks[1], 10)
    assert await states(connection, jobs) == ["SUCCEEDED"] * 6 + ["READY"] * 14
    counts = intake.registry.counts
    assert (counts[Fate.COMPLETED], counts[Fate.RETURNED], counts[Fate.UNRECORDED]) == (6, 6, 0)
    assert len(intake.registry) == 0
    assert await slots() is None


async def _are(connection, jobs, wanted):
    return await states(connection, jobs) == wanted


@pytest.mark.spec("S37", "S38")
async def test_room_that_a_lost_round_may_need_is_not_given_away_by_another_in_flight(
    make, connection, monkeypatch
):
    """Of what that one writes, nothing may come free: all its rows may prove to be locked."""
    await add(connection, SLOTS)
    intake = make(SIX, queues=["default"])
    intake.run()
    await until(lambda: len(intake.started()) == SLOTS)
    await end(intake.tasks[1])
    shared, seen = intake.claimer.intake, []

    async def looking(*args):
        seen.append((len(args[3]), shared.free))
        return [], []

    monkeypatch.setattr(finish_and_claim, "finish_and_claim", looking)
    backend = ServerProcess(1, None, "", direct=True)
    shared.lost_claims.add(backend, new_tokens(2), until=1e9)
    for inflight in list(intake.registry)[:3]:
        intake.put(inflight)
    assert shared.free == -2
    await intake.claimer.second_round.claim("default")
    assert seen == [(1, -2)]
    assert shared.free == -2


# Who is asked, and how often.


@pytest.mark.spec("S55", "S56")
async def test_two_plentiful_queues_are_served_by_their_weights(make, connection, sent):
    for queue in ("default", "mail"):
        await add(connection, 600, queue)
    intake = make(SIX)
    intake.claimer.selector = QueueSelector({"default": 1, "mail": 3})
    quick(intake)
    await start(intake)
    await until(lambda: len(intake.handlers.started) >= 400, every=0.001)
    served = Counter(inflight.claim.queue for inflight in intake.handlers.started[:400])
    assert 2.4 < served["mail"] / served["default"] < 3.6
    asked = Counter((one_sent.second, one_sent.queue) for one_sent in sent)
    assert len(asked) == 4


async def test_the_second_one_never_asks_a_queue_that_may_be_empty(make, connection, sent):
    await add(connection, 600)
    intake = make(SIX)
    quick(intake)
    await start(intake)

    def heated():
        intake.claimer.selector.mark_ready("mail")
        return any(one_sent.second for one_sent in sent) and completed(intake) == 600

    await until(heated)
    assert {one_sent.queue for one_sent in sent if one_sent.second} == {"default"}


@pytest.mark.spec("S41", "S46")
async def test_for_single_jobs_there_is_no_second_connection_and_no_more_statements(
    make, connection, sent
):
    intake = make(SIX)
    quick(intake)
    intake.run()
    await until(lambda: intake.claimer._polled_at > 0)
    for count in range(1, 11):
        await add_job(connection)
        intake.claimer.wake("default", 0)
        await until(lambda count=count: completed(intake) == count)
    assert intake.sessions[1].born == 0
    # One that finds the job and one for what its sender may have spared; each queue at the start.
    assert len(sent) <= 2 * 10 + 4
    assert not any(one_sent.second for one_sent in sent)


async def test_where_only_one_slot_is_free_single_jobs_open_no_second_connection(
    make, connection, sent
):
    """Each round finds all that it asks for: one."""
    await add(connection, SLOTS)
    intake = make(SIX, queues=["default"])
    intake.run()
    await until(lambda: len(intake.started()) == SLOTS)
    for count in range(1, 6):
        await add_job(connection)
        intake.put(next(iter(intake.registry)))
        await until(lambda count=count: len(intake.started()) == SLOTS + count)
    assert intake.sessions[1].born == 0
    assert not any(one_sent.second for one_sent in sent)


async def _no_busy_loop(sent):
    """Some rounds may be on their way; a loop would send hundreds."""
    before = len(sent)
    await asyncio.sleep(0.3)
    assert len(sent) - before < 12


@asynccontextmanager
async def locked(connect, where):
    other = await connect()
    async with other.transaction():
        await other.execute(f"SELECT FROM jobqueue_job WHERE {where} FOR UPDATE")
        yield


async def working(make, connection, sent):
    """Both connections have just found plenty; all slots are taken."""
    await add(connection, 2000)
    intake = make(SIX, queues=["default"])
    quick(intake)
    await start(intake)
    await both_work(intake, sent)
    del intake.handlers.start
    await until(lambda: intake.registry.free == 0 and not len(intake.completer))
    return intake


def finish(intake):
    for inflight in intake.registry:
        intake.put(inflight)
    intake.registry.freed.set()
    intake.claimer._second_wanted.set()


@pytest.mark.spec("S46")
async def test_no_busy_loop_while_all_that_is_ready_is_locked(make, connection, connect, sent):
    intake = await working(make, connection, sent)
    async with locked(connect, "state = 'READY'"):
        finish(intake)
        await until(lambda: intake.registry.free == SLOTS)
        await _no_busy_loop(sent)
        assert intake.registry.free == SLOTS


@pytest.mark.spec("S46")
async def test_no_busy_loop_while_the_queue_is_paused(make, connection, sent):
    intake = await working(make, connection, sent)
    await connection.execute(
        "INSERT INTO jobqueue_queue (name, paused_at) VALUES ('default', now())"
    )
    finish(intake)
    await until(lambda: intake.registry.free == SLOTS)
    await _no_busy_loop(sent)
    assert intake.registry.free == SLOTS


@pytest.mark.spec("S46")
async def test_no_busy_loop_while_the_receivers_lag(make, connection, sent, monkeypatch):
    intake = await working(make, connection, sent)
    monkeypatch.setattr(intake.handlers.task_signals.threads, "is_behind", True)
    finish(intake)
    await until(lambda: intake.registry.free == SLOTS)
    await _no_busy_loop(sent)
    assert intake.registry.free == SLOTS


@pytest.mark.spec("S46")
async def test_no_busy_loop_while_nothing_is_free(make, connection, sent):
    intake = await working(make, connection, sent)
    intake.registry.freed.set()
    intake.claimer._second_wanted.set()
    await _no_busy_loop(sent)


@pytest.mark.spec("S46", "S123")
async def test_no_statement_is_sent_that_could_take_nothing(make, connection, connect, sent):
    """The slots of outcomes that cannot be written now are no room, nor those of outcomes that the
    finisher is writing."""
    intake = await working(make, connection, sent)
    async with locked(connect, "state = 'RUNNING'"):
        for inflight in intake.registry:
            intake.put(inflight)
        await until(lambda: all(w.busy > 0.1 for w in intake.completer.pending))
        intake.registry.freed.set()
        intake.claimer._second_wanted.set()
        await _no_busy_loop(sent)
    before = completed(intake)
    finish_rest(intake)
    await until(lambda: completed(intake) > before + 100)
    assert all(one_sent.tokens for one_sent in sent)


def finish_rest(intake):
    quick(intake)
    for inflight in intake.registry:
        if not inflight.ended:
            intake.put(inflight)


@pytest.mark.spec("S44", "S46")
async def test_the_first_one_goes_on_when_only_the_second_has_found_plenty(
    make, connection, connect, sent
):
    """It is idle, since all was locked when it looked last."""
    intake = await working(make, connection, sent)
    async with locked(connect, "state = 'READY'"):
        finish(intake)
        await until(lambda: intake.registry.free == SLOTS)
        await until(lambda: not intake.claimer._backlogged and not intake.claimer.selector._ready)
    started = len(intake.started())

    def has_filled_all():
        # Said again, should a round from before be still to answer that it found nothing.
        intake.claimer._backlogged.add("default")
        intake.claimer._second_wanted.set()
        return len(intake.started()) >= started + SLOTS

    await until(has_filled_all)
    for count in range(SLOTS, SLOTS + 3):  # one slot at a time: too little for the second one
        intake.put(next(inflight for inflight in intake.registry if not inflight.ended))
        await until(lambda count=count: len(intake.started()) > started + count)


# Marks.


@pytest.mark.parametrize("what", ["urgent", "released"])
async def test_nothing_is_passed_over_while_both_begin_at_positions(
    make, connection, sent, monkeypatch, what
):
    """Many jobs come before the mark, all notified at once: the round that looks takes a few, and
    the others follow before anything that stands behind."""
    monkeypatch.setattr(scan_cursor, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(scan_cursor, "SHARE", 1e-9)
    await add(connection, 2000)
    intake = make(SIX, queues=["default"])
    quick(intake)
    await start(intake)
    await both_work(intake, sent)
    await until(lambda: any(one_sent.second and one_sent.onward for one_sent in sent))
    if what == "urgent":
        early = await add(connection, 60, priority=1)
        intake.claimer.wake("default", 1)
    else:
        early = await add(connection, 60, run_at=ago(3600))
        intake.claimer.wake("default")
    await until(lambda: set(early) <= set(intake.started()), every=0.001)
    order = intake.started()
    places = sorted(map(order.index, early))
    assert places[-1] - places[0] < 60 + 4 * SLOTS
    assert {one_sent.second for one_sent in sent[-20:] if one_sent.onward} == {True, False}


async def test_a_job_that_was_committed_late_waits_only_for_the_next_look(
    make, connection, connect, sent, monkeypatch
):
    monkeypatch.setattr(scan_cursor, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(scan_cursor, "SHARE", 0.005)
    late = await connect()
    async with late.transaction():
        job = await add_job(late)
        await add(connection, 2000)
        intake = make(SIX, queues=["default"])
        quick(intake)
        await start(intake)
        await until(lambda: any(one_sent.second and one_sent.onward for one_sent in sent))
        assert job not in intake.started()
    await until(lambda: job in intake.started())


async def test_a_look_that_could_take_nothing_is_made_again(make, connection, connect, monkeypatch):
    """What it was to write is locked, so that it has no slot for the urgent job."""
    monkeypatch.setattr(scan_cursor, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(scan_cursor, "SHARE", 1e-9)
    await add(connection, 20)
    intake = make(SIX, queues=["default"])
    intake.run()
    await until(lambda: len(intake.started()) == SLOTS)
    await end(intake.tasks[1])
    async with locked(connect, "state = 'RUNNING'"):
        urgent = await add_job(connection, priority=1)
        intake.claimer.wake("default", 1)
        for inflight in intake.registry:
            intake.put(inflight)
        intake.registry.freed.set()
        await until(lambda: all(waiting.lent for waiting in intake.completer.pending))
        await until(lambda: not any(waiting.is_sent for waiting in intake.completer.pending))
    intake.tasks[1] = asyncio.ensure_future(intake.completer.run())
    await until(lambda: len(intake.started()) > SLOTS)
    assert intake.started()[SLOTS] == urgent


# Trouble with one of them.


async def _terminate(connection):
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = %s AND datname = current_database()",
        [SECOND],
    )


@pytest.mark.spec("S47", "S69", "S101")
async def test_the_second_one_s_server_process_may_end_at_any_time(make, connection, sent, slots):
    jobs = await add(connection, 900)
    intake = make(SIX, queues=["default"])
    quick(intake, 0.002)
    intake.claimer.error_policies[1]._backoff.most = 0.02
    with captured() as logs:
        await start(intake)
        await both_work(intake, sent)
        for _ in range(5):
            born = intake.sessions[1].born
            await _terminate(connection)
            await until(lambda born=born: intake.sessions[1].born > born or completed(intake) > 899)
        await until(lambda: completed(intake) == 900)
    assert await states(connection, jobs) == ["SUCCEEDED"] * 900
    assert sorted(intake.started()) == jobs
    assert await slots() is None
    assert intake.sessions[1].born > 2
    said = {log["event"] for log in logs}
    assert not said & {"database_unreachable", "database_recovered", "service_failed"}


@pytest.fixture
def refused(monkeypatch):
    """While this holds something, the second one cannot connect."""
    opened, state = Session._open, {"tries": 0, "refused": True}

    async def open(self, seconds):
        if f"jobqueue {self.purpose}" == SECOND and state["refused"]:
            state["tries"] += 1
            raise psycopg.OperationalError("FATAL: sorry, too many clients already")
        return await opened(self, seconds)

    monkeypatch.setattr(Session, "_open", open)
    return state


@pytest.mark.spec("S47")
async def test_where_the_second_one_cannot_connect_the_first_goes_on_and_that_is_said_once(
    make, connection, sent, refused
):
    jobs = await add(connection, 100)
    intake = make(SIX, queues=["default"])
    quick(intake)
    intake.claimer.error_policies[1]._backoff.most = 0.01
    intake.claimer.error_policies[1]._backoff.first = 0.005
    with captured() as logs:
        intake.run()
        while refused["tries"] < 8:
            if intake.registry.free == SLOTS:
                jobs += await add(connection, 100)
                intake.claimer.wake("default", 0)
            await asyncio.sleep(0.01)
        refused["refused"] = False
        while intake.sessions[1].born == 0:
            if intake.registry.free == SLOTS:
                jobs += await add(connection, 100)
                intake.claimer.wake("default", 0)
            await asyncio.sleep(0.01)
        await until(lambda: completed(intake) == len(jobs))
    lines = [log for log in logs if log["event"].startswith("database_")]
    assert [(log["event"], log["purpose"]) for log in lines] == [
        ("database_call_failed", "claim 2")
    ]
    assert "too many clients" in lines[0]["error"]


@pytest.mark.spec("S47")
async def test_an_outage_is_logged_once_also_when_the_second_one_was_in_trouble_before(
    make, connection, proxy, sent, refused
):
    await add(connection, 2000)
    intake = make(SIX, queues=["default"])
    quick(intake)
    with captured() as logs:
        intake.run()
        await until(lambda: refused["tries"])
        await connection.execute("DELETE FROM jobqueue_job WHERE state = 'READY'")
        await until(lambda: intake.registry.free == SLOTS)
        done = completed(intake)
        proxy.refuse = True
        proxy.cut()
        await add(connection, 10)
        intake.claimer.wake("default", 0)
        await until(lambda: intake.outage_log._troubled)
        proxy.heal()
        await until(lambda: completed(intake) == done + 10)
        await until(lambda: not intake.outage_log._troubled)
    logged = [log["event"] for log in logs if log["event"].startswith("database_")]
    assert logged == ["database_call_failed", "database_unreachable", "database_recovered"]


@pytest.mark.spec("S48")
async def test_the_fifth_bug_in_a_row_on_the_second_ends_the_service(make, connection, monkeypatch):
    """However often it had nothing to do in between."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low / 100)
    real, bugs = finish_and_claim.finish_and_claim, []

    async def broken(own, *args):
        if own.info.get_parameters()["application_name"] == SECOND:
            bugs.append(1)
            raise ZeroDivisionError
        return await real(own, *args)

    monkeypatch.setattr(finish_and_claim, "finish_and_claim", broken)
    monkeypatch.setattr(claims, "claim", _unless_second(claims.claim, broken))
    await add(connection, 3000)
    intake = make(SIX, queues=["default"])
    quick(intake)
    await start(intake)
    await until(lambda: intake.tasks[0].done())
    assert isinstance(intake.tasks[0].exception(), ZeroDivisionError)
    assert len(bugs) == 5
    assert no_task_is_left()


def _unless_second(real, broken):
    async def claim(own, *args):
        if own.info.get_parameters()["application_name"] == SECOND:
            return await broken(own, *args)
        return await real(own, *args)

    return claim


@pytest.mark.spec("S53", "S101")
async def test_a_lost_round_of_the_second_is_looked_for_although_the_first_is_idle(
    make, connection, proxy, sent, monkeypatch
):
    """Not only at the next poll."""
    intake = await working(make, connection, sent)
    await connection.execute("DELETE FROM jobqueue_job WHERE state = 'READY'")
    finish(intake)
    await until(lambda: intake.registry.free == SLOTS and not intake.claimer.selector._ready)
    await until(lambda: not intake.claimer._backlogged and intake.claimer._wake._waiters)
    job, claim, lost = await add_job(connection), claims.claim, []

    async def lose(own, *args):
        rows = await claim(own, *args)
        if not lost and own.info.get_parameters()["application_name"] == SECOND:
            lost.append(rows)
            proxy.only = "claim 2"
            proxy.cut()
            proxy.heal()
            await own.execute("SELECT 1")
        return rows

    monkeypatch.setattr(claims, "claim", lose)
    intake.claimer._backlogged.add("default")
    intake.claimer._second_wanted.set()
    await until(lambda: (job, None, "READY") in intake.recorded.written_)
    assert [inflight.claim.id for inflight in intake.handlers.returned] == [job]


async def test_one_that_is_lost_while_others_are_asked_for_is_asked_for_at_once(
    make, connection, monkeypatch
):
    intake = make(SIX, queues=["default"])
    lost_claims, found = intake.claimer._lost_claims, claims.found
    worker = intake.claimer.intake.worker

    async def one_more(*args):
        if len(lost_claims) == 1:
            lost_claims.add(None, new_tokens(1), until=0.0)
        return await found(*args)

    monkeypatch.setattr(claims, "found", one_more)
    lost_claims.add(None, new_tokens(1), until=0.0)
    await lost_claims.resolve(5.0, lambda row: None)
    assert len(lost_claims) == 1
    assert lost_claims.are_due(asyncio.get_running_loop().time())
    assert await one(connection, "SELECT count(*) FROM jobqueue_job WHERE worker = %s", worker) == 0


@pytest.mark.spec("S37", "S51")
def test_a_whole_worker_uses_both_and_closes_both(work):
    running = work(concurrency=SLOTS, poll_seconds=60.0)
    made = Job.objects.bulk_create(
        [Job(task="tests.worker.jobs.aadd", args=[number, 1]) for number in range(1000)]
    )
    running.on_loop(running.worker.components.claimer.wake)
    running.quiet()
    assert Job.objects.filter(state="SUCCEEDED").count() == len(made)
    assert running.worker.components.sessions[1].born == 1
    assert running.stop() == 0
    assert running.worker.registry.counts[Fate.COMPLETED] == len(made)
    query = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND datname = %s"
    wait_until(lambda: not sql(query, SECOND, connections["default"].settings_dict["NAME"]))
