"""Elections and terms, with several leaders in one event loop and leases of two seconds."""

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from jobqueue.conf import Settings
from jobqueue.store import leadership
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.error_classes import CallTimeout
from jobqueue.versions import UNDERSTANDS
from jobqueue.worker.leadership.election import ELECT_SECONDS, RESIGN_SECONDS, Leader
from jobqueue.worker.outages import OutageLog
from tests.events import captured
from tests.rows import add_job, add_running, add_worker, ago, ahead, insert, job_row, one
from tests.waiting import until

SHORT = Settings(leader_lease_seconds=2.0, backoff_base_seconds=0.0)
HOLDER = "SELECT holder FROM jobqueue_leaderlease"
TERM = "SELECT term FROM jobqueue_leaderlease"
SEND = "tests.sample_tasks.send"
ADVISORY_LOCKS = """
SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND d.datname = current_database()
"""


@pytest_asyncio.fixture
async def start(parameters):
    """Start leaders as services; all are ended after the test."""
    running = []

    def start(settings=SHORT, worker=None, **changes):
        worker = worker or uuid4()
        with psycopg.connect(**parameters) as connection:  # whose beats never stop, here
            connection.execute(
                "INSERT INTO jobqueue_worker (id, pid, phase, last_seen_at) "
                "VALUES (%s, 1, 'RUNNING', now() + interval '1 h') ON CONFLICT DO NOTHING",
                [worker],
            )
        leader = Leader(
            parameters=ConnectionParameters.fixed({**parameters, **changes}),
            worker=worker,
            settings=settings,
            outage_log=OutageLog(),
            on_final=lambda ids: None,
        )
        leader.service = asyncio.ensure_future(leader.run())
        running.append(leader)
        return leader

    yield start
    for leader in running:
        leader.service.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await leader.service


@pytest.mark.spec("S166", "S167", "A20")
async def test_the_first_of_several_workers_leads_alone(start, connection):
    leaders = [start() for _ in range(3)]
    first = await until(lambda: next((leader for leader in leaders if leader.is_leading), None))
    assert await one(connection, HOLDER) == first.worker
    for _ in range(3):  # several renewals long
        before = await one(connection, "SELECT expires_at FROM jobqueue_leaderlease")
        await until(lambda before=before: renewed_since(connection, before))
        assert [leader for leader in leaders if leader.is_leading] == [first]
    assert (first.term, await one(connection, TERM)) == (1, 1)
    assert await one(connection, ADVISORY_LOCKS) == 0


async def renewed_since(connection, before):
    return await one(connection, "SELECT expires_at > %s FROM jobqueue_leaderlease", before)


@pytest.mark.spec("S174", "S175", "S176", "D63")
async def test_a_leader_that_leaves_is_followed_at_once_and_never_leads_again(start, connection):
    first = start()
    await until(lambda: first.is_leading)
    second = start()
    second.on_occupied()
    listener = await psycopg.AsyncConnection.connect(
        autocommit=True, **first._session.parameters.known
    )
    async with listener:
        await listener.execute("LISTEN jobqueue")
        await first.resign()
        assert not first.is_leading
        assert await one(connection, HOLDER) is None
        note = await anext(listener.notifies(timeout=5))
        assert note.payload == '{"kind": "leader"}'
    second.on_vacant()
    await until(lambda: second.is_leading)
    assert second.term == 2
    first.on_vacant()
    assert not first.is_leading


@pytest.mark.parametrize("work", ["lapsed", "expired"])
async def test_a_leader_leaves_what_it_does_not_understand_to_a_newer_worker(
    start, connection, work
):
    newer = await add_worker(connection, understands=UNDERSTANDS + 1)
    leader = start()
    await until(lambda: leader.is_leading)
    leader._maintenance.wake("find work", 0.0)
    if work == "lapsed":
        job, _ = await add_running(connection, needs=UNDERSTANDS + 1)
    else:
        job = await add_job(connection, needs=UNDERSTANDS + 1, expires_at=ago(1))
    leader._maintenance.wake("find work", 0.0)
    await until(lambda: not leader.is_leading)
    for _ in range(3):  # it does not stand again while that one lives
        await until(lambda: not leader._election_due.is_set())
        leader.on_vacant()
    assert await one(connection, HOLDER) is None
    assert (await job_row(connection, job))["state"] in {"RUNNING", "READY"}
    # Its lease of the role would lapse as its row grows old.
    await connection.execute(
        "UPDATE jobqueue_worker SET last_seen_at = now() - interval '1 h' WHERE id = %s", [newer]
    )
    await until(lambda: leader.on_vacant() or leader.is_leading)
    leader._maintenance.wake("find work", 0.0)
    await until(lambda: leader._maintenance.steps["find work"].due > 0.0)
    assert leader.is_leading  # nobody understands it, and the others need a leader
    assert (await job_row(connection, job))["state"] in {"RUNNING", "READY"}


@pytest.mark.spec("S174")
async def test_a_win_that_was_in_flight_when_the_stop_came_is_handed_back(
    start, connection, monkeypatch
):
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow_answer(connection, worker, lease, **options):
        term = await elect(connection, worker, lease, **options)
        asked.set()
        await go.wait()
        return term

    elect = leadership.elect
    monkeypatch.setattr(leadership, "elect", slow_answer)
    leader = start()
    await asked.wait()
    stop = asyncio.ensure_future(leader.resign())
    await asyncio.sleep(0)
    go.set()
    await stop
    assert await one(connection, HOLDER) is None
    assert await one(connection, TERM) == 1
    assert leader._work.born == 0  # its services never started


@pytest.mark.spec("D63")
@pytest.mark.spec("S174")
async def test_a_stop_that_comes_while_the_new_leader_connects_is_heard(
    start, connection, monkeypatch
):
    leader = start()
    opened, stops = leader._work.open, []

    async def stopped_meanwhile(seconds):
        answer = await opened(seconds)
        if not stops:
            stops.append(asyncio.ensure_future(leader.resign()))
            await asyncio.sleep(0)
        return answer

    monkeypatch.setattr(leader._work, "open", stopped_meanwhile)
    await until(lambda: stops)
    async with asyncio.timeout(RESIGN_SECONDS + ELECT_SECONDS - 0.5):  # its bound
        await stops[0]
    assert await one(connection, HOLDER) is None
    assert await one(connection, TERM) == 1


async def test_resigning_is_bounded_when_the_row_is_locked(start, connection, connect):
    leader = start()
    await until(lambda: leader.is_leading)
    other = await connect()
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_leaderlease FOR UPDATE")
        begin = time.monotonic()
        await leader.resign()
        assert time.monotonic() - begin < 10


@pytest.mark.spec("S170", "S171", "D61")
async def test_trust_ends_before_the_lease_when_renewals_get_no_answer(
    start, connection, monkeypatch
):
    async def swallow(connection, worker, term, lease):
        await connection.execute("SELECT pg_sleep(60)")

    leader = start()
    await until(lambda: leader.is_leading)
    monkeypatch.setattr(leadership, "renew", swallow)
    valid = "SELECT expires_at > clock_timestamp() FROM jobqueue_leaderlease"
    await until(lambda: not leader.is_leading, every=0.001)
    assert await one(connection, valid) is not False  # None: it has been given back already


@pytest.mark.spec("S171", "S170")
async def test_the_flag_falls_with_the_clock_even_while_the_loop_was_blocked(start):
    leader = start()
    await until(lambda: leader.is_leading)
    time.sleep(2.1)  # noqa: ASYNC251  (as a frozen process would)
    assert not leader.is_leading
    assert leader.term is None


@pytest.mark.spec("S169", "S177")
async def test_a_leader_deposed_unnoticed_steps_down_and_does_no_harm(start, connection):
    leader, usurper = start(), uuid4()
    await until(lambda: leader.is_leading)
    await connection.execute(
        "UPDATE jobqueue_leaderlease SET holder = %s, term = term + 1, "
        "expires_at = clock_timestamp() + interval '1 h'",
        [usurper],
    )
    await until(lambda: not leader.is_leading)
    await leader.resign()
    assert await one(connection, HOLDER) == usurper


@pytest.mark.spec("S166")
async def test_a_lease_in_the_name_of_nobody_known_holds_up_no_election(start, connection):
    """An expiry of tomorrow, as a clock that was set back or a restored backup leaves it."""
    row = {"name": "maintenance", "holder": uuid4(), "term": 3}
    times = {"acquired_at": ago(0), "expires_at": ahead(86_400)}
    await insert(connection, "jobqueue_leaderlease", "name", row | times)
    leader = start()
    await until(lambda: leader.is_leading)
    assert leader.term == 4
    assert await one(connection, "SELECT expires_at < now() + '1 h' FROM jobqueue_leaderlease")


@pytest.mark.spec("S166")
async def test_a_follower_sends_nothing_while_beats_show_a_leader(start, monkeypatch):
    leader = start()
    await until(lambda: leader.is_leading)
    follower = start()
    await until(lambda: follower._session.born and follower._session.connection is None)
    calls = []
    monkeypatch.setattr(follower._session, "call", calls.append)
    monkeypatch.setattr("jobqueue.worker.leadership.election.ELECTION_SECONDS", 0.02)
    for _ in range(20):
        follower.on_occupied()
        await asyncio.sleep(0.01)
    assert calls == []


@pytest.mark.spec("S166")
async def test_between_slow_beats_a_follower_looks_for_itself(start, connection, monkeypatch):
    """The role of a leader whose death nobody certifies is taken when its lease is over."""
    monkeypatch.setattr("jobqueue.worker.leadership.election.ELECTION_SECONDS", 0.1)
    leader = start()
    await until(lambda: leader.is_leading)
    follower = start(replace(SHORT, heartbeat_seconds=90.0, lease_seconds=600.0))
    await until(lambda: follower._session.born and follower._session.connection is None)
    follower.on_occupied()  # as by a beat; the next one comes in a minute and a half
    leader.service.cancel()
    await until(lambda: follower.is_leading)


@pytest.mark.spec("S172")
async def test_a_winner_that_cannot_work_hands_the_role_back(start, connection, monkeypatch):
    leader = start()
    tries = []

    async def no_connection(seconds):
        tries.append(seconds)
        raise CallTimeout("no connection to be had")

    monkeypatch.setattr(leader._work, "open", no_connection)
    await until(lambda: leader._failed_wins == 1)
    assert tries
    assert not leader.is_leading
    assert await one(connection, HOLDER) is None
    capable = start()
    await until(lambda: capable.is_leading)


@pytest.mark.spec("S182")
async def test_a_scheduled_job_is_promoted_when_it_falls_due(start, connection):
    job = await add_job(connection, state="SCHEDULED", run_at=ahead(0.5))
    leader = start()
    await until(lambda: leader.is_leading)
    await until(lambda: is_in(connection, job, "READY"))
    sooner = await add_job(connection, state="SCHEDULED", run_at=ahead(0.2))
    leader.on_scheduled(await one(connection, "SELECT EXTRACT(EPOCH FROM now())::float8 + 0.2"))
    await until(lambda: is_in(connection, sooner, "READY"), seconds=3)


async def is_in(connection, job, state):
    return (await job_row(connection, job))["state"] == state


@pytest.mark.spec("S4", "D64")
@pytest.mark.parametrize("offset", [-600, 600])
async def test_a_leader_whose_own_clock_is_off_promotes_by_the_databases_clock(
    start, connection, monkeypatch, offset
):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + offset)
    leader = start()
    await until(lambda: leader.is_leading)
    job = await add_job(connection, state="SCHEDULED", run_at=ahead(0.3))
    leader.on_scheduled(await one(connection, "SELECT EXTRACT(EPOCH FROM now())::float8 + 0.3"))
    await until(lambda: is_in(connection, job, "READY"), seconds=3)
    early = "SELECT min(run_at) > clock_timestamp() FROM jobqueue_job WHERE state = 'READY'"
    assert not await one(connection, early)


@pytest.mark.spec("S183")
async def test_a_certified_death_is_swept_at_once(start, connection):
    leader = start()
    await until(lambda: leader.is_leading)
    dead = await add_worker(connection, died_at=ago(0))
    job, _ = await add_running(connection, worker=dead, lease=ahead(600))
    leader.reclaim_now()
    await until(lambda: is_in(connection, job, "READY"), seconds=3)


@pytest.mark.spec("S183", "S184", "S191")
async def test_the_leader_reclaims_expires_and_prunes(start, connection):
    lapsed, _ = await add_running(connection)
    late = await add_job(connection, expires_at=ago(1))
    await add_job(connection, state="SUCCEEDED", finished_at=ago(8 * 86400))
    start()
    await until(lambda: is_in(connection, lapsed, "READY"))
    await until(lambda: is_in(connection, late, "DEAD"))
    count = "SELECT count(*) FROM jobqueue_job WHERE state = 'SUCCEEDED'"
    await until(lambda: is_zero(connection, count))


async def is_zero(connection, statement):
    return await one(connection, statement) == 0


@pytest.mark.spec("S168", "S170")
async def test_an_answer_that_comes_with_the_end_of_the_trust_is_no_fault(start, monkeypatch):
    """The scope of the term has begun to end, and cannot be pushed any more."""
    leader, renew = start(), leadership.renew

    async def late(*args):
        answer = await renew(*args)
        monkeypatch.setattr(leadership, "renew", renew)
        time.sleep(leader._trust_end - asyncio.get_running_loop().time() + 0.05)  # noqa: ASYNC251
        return answer

    monkeypatch.setattr(leadership, "renew", late)
    with captured() as logs:
        (lost,) = await until(lambda: [e for e in logs if e["event"] == "leader_lost"])
    assert lost["reason"] == "trust ended"


@pytest.mark.spec("S181")
async def test_one_row_that_the_database_refuses_to_change_stops_no_other(start, connection):
    jobs = [(await add_running(connection))[0] for _ in range(5)]
    bad = jobs[0]
    await connection.execute(
        "ALTER TABLE jobqueue_job ADD CONSTRAINT bad CHECK "
        f"(id <> {bad} OR state = 'RUNNING') NOT VALID"
    )
    try:
        leader = start()
        for job in jobs[1:]:
            await until(lambda job=job: is_in(connection, job, "READY"))
        assert leader.is_leading
        assert await is_in(connection, bad, "RUNNING")
    finally:
        await connection.execute("ALTER TABLE jobqueue_job DROP CONSTRAINT bad")


@pytest.mark.spec("S181")
async def test_a_row_that_was_refused_for_a_moment_is_tried_again(start, connection, monkeypatch):
    monkeypatch.setattr("jobqueue.worker.row_batches.ASIDE_SECONDS", 0.3)
    monkeypatch.setattr("jobqueue.worker.leadership.job_steps.FIND_WORK_SECONDS", 0.2)
    job, _ = await add_running(connection)
    await connection.execute(
        f"ALTER TABLE jobqueue_job ADD CONSTRAINT bad CHECK (id <> {job} OR state = 'RUNNING') "
        "NOT VALID"
    )
    try:
        with captured() as logs:
            start()
            await until(lambda: [e for e in logs if e["event"] == "row_set_aside"])
    finally:
        await connection.execute("ALTER TABLE jobqueue_job DROP CONSTRAINT bad")
    await until(lambda: is_in(connection, job, "READY"))


@pytest.mark.spec("S181")
async def test_a_due_row_that_cannot_be_promoted_stops_no_other(start, connection):
    jobs = [await add_job(connection, state="SCHEDULED", run_at=ago(9 - i)) for i in range(5)]
    await connection.execute(
        f"ALTER TABLE jobqueue_job ADD CONSTRAINT bad CHECK (id <> {jobs[0]} OR state <> 'READY') "
        "NOT VALID"
    )
    try:
        leader = start()
        for job in jobs[1:]:
            await until(lambda job=job: is_in(connection, job, "READY"))
        assert leader.is_leading
        assert await is_in(connection, jobs[0], "SCHEDULED")
    finally:
        await connection.execute("ALTER TABLE jobqueue_job DROP CONSTRAINT bad")


@pytest.mark.spec("S181")
@pytest.mark.parametrize("options", ["[]", "null", '"x"', '{"backoff": "tests.odd.rule"}'])
async def test_an_orphan_whose_options_are_unreadable_is_reclaimed_like_its_neighbours(
    start, connection, options, monkeypatch
):
    def leaves(failures):
        raise SystemExit(3)

    monkeypatch.setitem(sys.modules, "tests.odd", SimpleNamespace(rule=leaves))
    bad, _ = await add_running(connection)
    good, _ = await add_running(connection)
    await connection.execute("ALTER TABLE jobqueue_job DROP CONSTRAINT jobqueue_job_options")
    try:
        await connection.execute(
            "UPDATE jobqueue_job SET options = %s::jsonb WHERE id = %s", [options, bad]
        )
        leader = start()
        for job in (bad, good):
            await until(lambda job=job: is_in(connection, job, "READY"))
        assert leader.is_leading
    finally:
        await connection.execute("UPDATE jobqueue_job SET options = '{}'")
        await connection.execute(
            "ALTER TABLE jobqueue_job ADD CONSTRAINT jobqueue_job_options "
            "CHECK (jsonb_typeof(options) = 'object')"
        )


@pytest.mark.spec("S181")
async def test_slow_backoff_rules_hold_up_neither_the_loop_nor_the_other_orphans(
    start, connection, monkeypatch
):
    """A rule is a project's code: it runs in a thread, and one that hangs gives way to the
    default."""
    asked, hang = [], threading.Event()

    def slow(failures):
        asked.append(threading.current_thread().name)
        time.sleep(0.1)
        return 0.0

    def hangs(failures):
        asked.append(threading.current_thread().name)
        hang.wait(60)
        return 0.0

    monkeypatch.setitem(sys.modules, "tests.odd", SimpleNamespace(slow=slow, hangs=hangs))
    options = [{"backoff": "tests.odd.hangs"}] + [{"backoff": "tests.odd.slow"}] * 25 + [{}] * 5
    orphans = [(await add_running(connection, options=json.dumps(o)))[0] for o in options]
    try:
        leader = start()
        for job in orphans:
            await until(lambda job=job: is_in(connection, job, "READY"), seconds=30)
        assert leader.is_leading
    finally:
        hang.set()
    assert set(asked) == {"retry-rules"}


@pytest.mark.spec("S161")
async def test_a_notification_that_fails_stops_no_step(start, connection, monkeypatch):
    async def full(connection, messages):
        raise psycopg.errors.ProgramLimitExceeded("too many notifications in the NOTIFY queue")

    monkeypatch.setattr("jobqueue.worker.hints.notify", full)
    leader = start()
    await until(lambda: leader.is_leading)
    for _ in range(7):  # more than a step may fail in a row
        job = await add_job(connection, state="SCHEDULED", run_at=ago(1))
        leader.on_scheduled(0)
        await until(lambda job=job: is_in(connection, job, "READY"))
    assert leader.is_leading


@pytest.mark.spec("S179", "S191", "S174", "A18", "A19", "D95")
async def test_a_stop_in_the_middle_of_a_long_prune_keeps_what_is_done(start, connection):
    await connection.execute(
        "INSERT INTO jobqueue_job (task, state, finished_at) "
        "SELECT 'x.y', 'SUCCEEDED', now() - interval '9 d' FROM generate_series(1, 30000)"
    )
    count = "SELECT count(*) FROM jobqueue_job"
    leader = start()
    await until(lambda: fewer_than(connection, 30000))
    begin = time.monotonic()
    await leader.resign()
    assert time.monotonic() - begin < 5
    left = await one(connection, count)
    assert 0 < left < 30000
    assert left % 500 == 0
    start()
    await until(lambda: is_zero(connection, count))


async def fewer_than(connection, most):
    return await one(connection, "SELECT count(*) FROM jobqueue_job") < most


@pytest.mark.spec("S176", "S177", "S185")
async def test_two_leaders_forced_at_once_do_no_harm(start, connection, monkeypatch):
    monkeypatch.setattr(leadership, "renew", AsyncMock(return_value=True))
    first = start()
    await until(lambda: first.is_leading)
    await connection.execute(
        "UPDATE jobqueue_leaderlease SET holder = NULL, acquired_at = NULL, expires_at = NULL"
    )
    second = start()
    await until(lambda: second.is_leading)
    many = range(40)
    for number in many:
        await add_running(connection)
        await add_job(connection, expires_at=ago(1))
        await add_job(connection, state="SCHEDULED", run_at=ago(1))
        await add_job(connection, state="SUCCEEDED", finished_at=ago(8 * 86400))
        row = {"name": str(number), "task": SEND, "cron": "0 0 1 1 *", "next_run_at": ago(1)}
        await insert(connection, "jobqueue_schedule", "id", row)
    for _ in range(5):
        for leader in (first, second):
            for step in ("tick", "reclaim", "expire", "promote", "prune"):
                leader._maintenance.wake(step, 0.0)
        await asyncio.sleep(0)
    sums = "SELECT array_agg(DISTINCT task || ' ' || state || ' ' || attempts) FROM jobqueue_job"
    shop = {f"shop.receipt {ended}" for ended in ("DEAD 0", "READY 0", "READY 1")}
    wanted = {f"{SEND} READY 0", *shop}
    await until(lambda: says(connection, sums, wanted))
    due = "SELECT count(*) FROM jobqueue_schedule WHERE next_run_at <= clock_timestamp()"
    await until(lambda: is_zero(connection, due))
    for count in (
        f"SELECT count(*) FROM jobqueue_job WHERE task = '{SEND}'",
        "SELECT count(*) FROM jobqueue_scheduletick",
        "SELECT count(*) FROM jobqueue_attempt WHERE outcome = 'LOST'",
        "SELECT count(*) FROM jobqueue_jobevent WHERE kind = 'expire'",
    ):
        assert await one(connection, count) == len(many)
    assert first.is_leading
    assert second.is_leading


async def says(connection, statement, wanted):
    return set(await one(connection, statement)) == wanted


@pytest.mark.spec("S191", "A19")
async def test_a_retention_of_zero_is_at_once_and_again_and_none_is_for_ever(start, connection):
    kept = await add_job(connection, state="DEAD", finished_at=ago(9**9))
    leader = start(
        replace(SHORT, retention={"SUCCEEDED": 0.0, "CANCELLED": 60.0, "DEAD": None, "ACTS": None})
    )
    for _ in range(2):
        gone = await add_job(connection, state="SUCCEEDED", finished_at=ago(0))
        leader._maintenance.wake("find work", 0.0)
        left = f"SELECT count(*) FROM jobqueue_job WHERE id = {gone}"
        await until(lambda left=left: is_zero(connection, left))
    assert await is_in(connection, kept, "DEAD")


@pytest.mark.spec("S191")
async def test_the_leader_removes_notes_on_jobs_that_are_gone_and_old_acts(start, connection):
    gone = 10**9
    for kind, at in (("reclaim", ago(1)), ("cancel", ago(91 * 86400)), ("cancel", ago(1))):
        event = {"kind": kind, "job": gone, "at": at}
        kept = await insert(connection, "jobqueue_jobevent", "id", event)
    start()
    await until(lambda: is_only_event(connection, kept))


async def is_only_event(connection, id):
    return await one(connection, "SELECT array_agg(id) FROM jobqueue_jobevent") == [id]


async def test_a_leader_with_a_cut_connection_works_on(start, connection):
    leader = start()
    await until(lambda: leader.is_leading)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'jobqueue %'"
    )
    job, _ = await add_running(connection)
    leader.reclaim_now()
    await until(lambda: is_in(connection, job, "READY"))
    assert leader.term == 1


@pytest.mark.spec("S173")
@pytest.mark.parametrize("lease", [2.0, 15.0, 120.0])
def test_a_lease_holds_more_than_four_renewals(lease):
    assert lease >= 4 * Settings(leader_lease_seconds=lease).leader_renew_seconds


@pytest.mark.spec("S47", "S170")
async def test_an_outage_is_logged_once_however_often_a_leader_tries(start, monkeypatch):
    tries = []

    async def away(verb, *_, **__):
        tries.append(verb)
        raise psycopg.OperationalError("the server is away")

    monkeypatch.setattr("jobqueue.worker.leadership.election.ELECTION_SECONDS", 0.1)
    with captured() as entries:
        leader = start(replace(SHORT, heartbeat_seconds=0.1))
        await until(lambda: leader.is_leading)
        with monkeypatch.context() as outage:
            outage.setattr(leader._session, "call", away)
            outage.setattr(leader._work, "call", away)
            outage.setattr(leader, "_pause", lambda _: asyncio.sleep(0.05))
            await until(lambda: tries.count(leadership.elect) == 2)
        await until(lambda: leader.is_leading)
    logged = Counter(entry["event"] for entry in entries)
    assert tries.count(leadership.renew) > 1
    assert logged.pop("leader_elected") == 2
    assert logged == {"database_unreachable": 1, "leader_lost": 1, "database_recovered": 1}


@pytest.mark.spec("S47")
async def test_a_follower_that_hears_of_a_leader_again_says_that_the_outage_is_over(
    start, monkeypatch
):
    with captured() as entries:
        follower = start(port="1")
        await until(lambda: entries)
        follower.on_occupied()
    assert [entry["event"] for entry in entries] == ["database_unreachable", "database_recovered"]
