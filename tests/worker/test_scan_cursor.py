"""Claims that begin where the last one ended: faster, and nothing is passed over."""

import asyncio
from typing import NamedTuple
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from jobqueue.conf import Settings
from jobqueue.store import claims
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.worker.claiming import queue_pauses, scan_cursor
from jobqueue.worker.claiming.claim_round import new_tokens
from jobqueue.worker.claiming.claimer import Claimer
from jobqueue.worker.claiming.scan_cursor import ScanCursor
from jobqueue.worker.inflight import Fate, InFlightJobs
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from jobqueue.worker.outcomes.completer import Completer
from tests.rows import Sql, add_job, ago
from tests.waiting import until
from tests.worker.faults import Handlers, RecordedEvents, end

CALM = Settings(poll_seconds=600.0, concurrency=3)
FOR_EVER, A_MOMENT = 1e-9, 0.005  # as parts of the time


@pytest_asyncio.fixture
async def make(parameters, monkeypatch):
    """A claimer to whom every full scan is slow."""
    made = []

    def make(share=FOR_EVER, settings=CALM):
        monkeypatch.setattr(scan_cursor, "SLOW_SECONDS", -1.0)
        monkeypatch.setattr(scan_cursor, "SHARE", share)
        intake = Intake(parameters, settings)
        made.append(intake)
        return intake

    yield make
    for intake in made:
        await end(intake.task)
        for session in intake.sessions:
            await session.close()


class Intake:
    def __init__(self, parameters, settings):
        self.registry = InFlightJobs(settings.concurrency)
        outage_log = OutageLog()
        self.completer = Completer(
            Session(ConnectionParameters.fixed(parameters), "finish"),
            uuid4(),
            self.registry,
            RecordedEvents(),
            ErrorPolicy("finish", outage_log),
            trust_seconds=30.0,
            on_ready=lambda queue: None,
            on_soon=lambda seconds: None,
        )
        self.handlers = Handlers(self.registry, self.completer)
        self.sessions = tuple(
            Session(ConnectionParameters.fixed(parameters), purpose)
            for purpose in ("claim", "claim 2")
        )
        self.claimer = Claimer(
            self.sessions,
            uuid4(),
            {"default": 1},
            settings,
            self.registry,
            self.handlers,
            (ErrorPolicy("claim", outage_log), ErrorPolicy("claim 2", outage_log, helper=True)),
            max_attempts=None,
            is_notified=lambda: True,
            notify_ready=lambda queue: None,
            is_overdue=lambda: True,
            on_spent=lambda: None,
        )
        self.task = asyncio.ensure_future(self.claimer.run())

    async def started(self, count):
        """Let every handler end as soon as it has started, until so many have; return the jobs."""

        def enough():
            for inflight in self.registry:
                self.registry.end(inflight)
                self.registry.record_fate(inflight, Fate.COMPLETED)
            return len(self.handlers.started) >= count

        await until(enough)
        return [inflight.claim.id for inflight in self.handlers.started]

    async def past(self, connection, count=4):
        """Begin, and get past the first jobs, with the position set."""
        jobs = [await add_job(connection, run_at=ago(60)) for _ in range(count)]
        self.claimer.wake()
        assert await self.started(count) == jobs
        await asyncio.sleep(3 * queue_pauses.PAUSE_SECONDS)
        assert self.claimer.cursor.begin("default", asyncio.get_running_loop().time()).after
        return jobs


@pytest.mark.spec("S54")
async def test_the_order_is_the_same_from_a_position_on(make, connection):
    jobs = []
    for number in range(40):
        priority = number % 3 - 1
        run_at = ago(100 - number // 2)
        jobs.append(
            (-priority, number // 2, await add_job(connection, priority=priority, run_at=run_at))
        )
    intake = make()
    assert await intake.started(40) == [job for _, _, job in sorted(jobs)]


async def test_a_more_urgent_job_is_seen_at_its_wake(make, connection):
    intake = make()
    await intake.past(connection)
    job = await add_job(connection, priority=1)
    intake.claimer.wake("default", 1)
    assert (await intake.started(5))[-1] == job


async def test_a_new_job_is_seen_at_its_wake_from_the_position_on(make, connection):
    intake = make()
    await intake.past(connection)
    for priority in (0, -7):
        job = await add_job(connection, priority=priority)
        intake.claimer.wake("default", priority)
        assert (await intake.started(len(intake.handlers.started) + 1))[-1] == job


@pytest.mark.parametrize("queue", ["default", None])
async def test_a_job_that_came_back_is_seen_at_a_wake_without_priority(make, connection, queue):
    intake = make()
    await intake.past(connection)
    job = await add_job(connection, run_at=ago(3600))
    intake.claimer.wake(queue)
    assert (await intake.started(5))[-1] == job


async def test_a_job_that_was_committed_late_waits_only_for_the_next_full_scan(
    make, connect, connection
):
    intake = make(share=A_MOMENT)
    late = await connect()
    async with late.transaction():
        job = await add_job(late)
        await intake.past(connection)
        other = await add_job(connection)
        intake.claimer.wake("default", 0)
        assert (await intake.started(5))[-1] == other
    intake.claimer.wake("default", 0)  # says no more than that it is new
    assert (await intake.started(6))[-1] == job


async def test_a_job_that_came_back_without_a_wake_waits_only_for_the_poll(make, connection):
    intake = make(settings=Settings(poll_seconds=0.3, concurrency=3))
    await intake.past(connection)
    job = await add_job(connection, run_at=ago(3600))
    assert (await intake.started(5))[-1] == job


async def test_a_job_that_came_back_under_load_waits_only_for_the_next_full_scan(make, connection):
    for _ in range(20):
        await add_job(connection)
    intake = make(share=A_MOMENT)
    await intake.started(10)
    job = await add_job(connection, run_at=ago(3600))
    feeding = asyncio.ensure_future(feed(connection))
    try:
        await until(
            lambda: (
                job in [inflight.claim.id for inflight in intake.handlers.started] or free(intake)
            )
        )
    finally:
        await end(feeding)


async def feed(connection):
    """Never let the queue run dry."""
    while True:
        await add_job(connection)


def free(intake):
    for inflight in intake.registry:
        intake.registry.end(inflight)
        intake.registry.record_fate(inflight, Fate.COMPLETED)


async def test_a_paused_queue_gives_nothing_after_a_position_either(connection):
    await connection.execute(
        "INSERT INTO jobqueue_queue (name, paused_at) VALUES ('default', now())"
    )
    await add_job(connection)
    mark = claims.Key(5, await moment(connection, ago(60)), 0)
    assert await claims.claim(connection, "default", uuid4(), new_tokens(3), 30.0, mark) == []


async def moment(connection, text: Sql):
    cursor = await connection.execute(f"SELECT {text}")
    return (await cursor.fetchone())[0]


def test_quick_full_scans_leave_no_position():
    own = ScanCursor()
    scan = own.begin("default", 1.0)
    assert scan.after is None
    own.record("default", scan, [], 1.0)
    assert own.begin("default", 1.0).after is None
    assert own.seconds_to_full_scan("default", 1.0) <= 0


async def test_a_failed_full_scan_is_repeated(make, connection, monkeypatch):
    """The round that would have seen something more urgent failed in an outage."""
    intake = make()
    await intake.past(connection)
    job, claim, failed = await add_job(connection, run_at=ago(3600)), claims.claim, []

    async def failing(*args):
        if not failed:
            failed.append(args)
            raise psycopg.OperationalError("weather")
        return await claim(*args)

    monkeypatch.setattr(claims, "claim", failing)
    intake.claimer.wake("default")
    assert (await intake.started(5))[-1] == job
    assert failed[0][-1] is None  # it was a full scan


def test_a_queue_that_was_never_claimed_from_has_no_position():
    """As when the stop comes between the wake and the round."""
    assert ScanCursor().seconds_to_full_scan("default", 1.0) <= 0


# With two rounds in flight.


def claimed(priority, minute):
    return [_Row(claims.Key(priority, minute, minute))]


class _Row(NamedTuple):
    key: claims.Key
    took: float = 0.1


@pytest.mark.parametrize("is_full_scan_first", [True, False])
@pytest.mark.parametrize("other", ["onward", "an older full scan"])
def test_a_late_answer_does_not_hide_what_a_full_scan_has_found(is_full_scan_first, other):
    own = ScanCursor()
    own.record("default", own.begin("default", 0.0), claimed(0, 10), 0.0)
    if other == "an older full scan":
        own.request_full_scan("default")
    onward = own.begin("default", 0.1)
    own.request_full_scan("default")
    look = own.begin("default", 0.1)
    assert (onward.after is None, look.after) == (other == "an older full scan", None)
    answers = [(look, claimed(5, 3)), (onward, claimed(0, 20))]
    for scan, rows in answers if is_full_scan_first else reversed(answers):
        own.record("default", scan, rows, 0.1)
    assert own.begin("default", 0.2).after == claims.Key(5, 3, 3)


def test_rounds_that_overlap_all_the_time_move_the_position_on():
    own, behind = ScanCursor(), []
    own.record("default", own.begin("default", 0.0), claimed(0, 0), 0.0)
    flights = [own.begin("default", 0.1)]
    for minute in range(1, 50):
        flights.append(own.begin("default", 0.1))
        own.record("default", flights.pop(0), claimed(0, minute), 0.1)
        behind.append(minute - own.begin("default", 0.1).after.id)
    assert max(behind) <= 1
