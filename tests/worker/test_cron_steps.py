"""Cron in the database: each tick makes one job, and a broken entry hurts itself only."""

import asyncio
import sys
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from django.db import connection as django_connection
from psycopg.rows import dict_row

from jobqueue import tasks
from jobqueue.conf import Settings
from jobqueue.models import Schedule
from jobqueue.store import schedules
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import CallTimeout
from jobqueue.worker.leadership import cron_steps
from jobqueue.worker.leadership.cron_steps import STRIKES, CronSteps
from tests.rows import ago, ahead, insert, one
from tests.waiting import until


@pytest_asyncio.fixture
async def leader(parameters):
    """Make the cron part of a leader, on a session of its own."""
    made = []

    def leader(settings=None):
        session = Session(ConnectionParameters.fixed(parameters), "maintenance")
        given = settings or Settings()
        ticking = CronSteps(session, worker=uuid4(), settings=given, wake=lambda *_: None)
        made.append(ticking)
        return ticking

    yield leader
    for ticking in made:
        ticking.close()
        await ticking.session.close()


async def add(connection, **columns):
    given = {
        "name": str(uuid4()),
        "task": "tests.sample_tasks.send",
        "cron": "* * * * *",
        "next_run_at": ago(1),
        **columns,
    }
    return await insert(connection, "jobqueue_schedule", "id", given)


async def row(connection, schedule):
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute("SELECT * FROM jobqueue_schedule WHERE id = %s", [schedule])
    return await cursor.fetchone()


async def jobs(connection):
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute("SELECT * FROM jobqueue_job ORDER BY id")
    return await cursor.fetchall()


@pytest.mark.spec("S185", "S190")
async def test_a_due_schedule_makes_a_job_as_an_enqueue_would(connection, connect, leader):
    listener = await connect()
    await listener.execute("LISTEN jobqueue")
    schedule = await add(connection, args=[3], kwargs={"text": "x"}, queue="mail", priority=9)
    planned = (await row(connection, schedule))["next_run_at"]
    await leader().fire(20)
    [job] = await jobs(connection)
    assert (job["task"], job["args"], job["kwargs"]) == (
        "tests.sample_tasks.send",
        [3],
        {"text": "x"},
    )
    assert (job["queue"], job["priority"], job["state"]) == ("mail", 9, "READY")
    assert job["args_bytes"] == len("[3]") + len('{"text":"x"}')
    after = await row(connection, schedule)
    assert after["next_run_at"] > planned
    assert after["last_run_at"] is not None
    tick = "SELECT job FROM jobqueue_scheduletick WHERE schedule_id = %s"
    assert await one(connection, tick, schedule) == job["id"]
    note = await anext(listener.notifies(timeout=5))
    assert note.payload == '{"kind": "ready", "queue": "mail"}'


@pytest.mark.spec("S185", "S177", "D59")
async def test_leaders_forced_at_once_make_one_job_per_tick(connection, leader):
    for _ in range(30):
        await add(connection)
    await asyncio.gather(*(leader().fire(50) for _ in range(4)))
    assert len(await jobs(connection)) == 30
    ticks = "SELECT count(*) FROM jobqueue_scheduletick"
    assert await one(connection, ticks) == 30


@pytest.mark.spec("S185")
async def test_a_tick_that_has_happened_makes_no_second_job(connection, leader):
    schedule = await add(connection, cron="0 0 1 1 *")
    await leader().fire(20)
    planned = "SELECT tick_at FROM jobqueue_scheduletick"
    back = "UPDATE jobqueue_schedule SET next_run_at = (" + planned + ")"
    await connection.execute(back)  # as if a leader's clock had jumped, or its commit been undone
    await leader().fire(20)
    assert len(await jobs(connection)) == 1
    assert (await row(connection, schedule))["next_run_at"] > datetime.now(UTC)


@pytest.mark.spec("S185")
async def test_a_new_schedule_is_planned_and_not_run(connection, leader):
    schedule = await add(connection, next_run_at=None)
    await leader().fire(20)
    assert await jobs(connection) == []
    planned = (await row(connection, schedule))["next_run_at"]
    assert timedelta() < planned - datetime.now(UTC) <= timedelta(minutes=1)


@pytest.mark.spec("S188", "A17")
async def test_a_schedule_is_planned_in_its_own_time_zone(connection, leader):
    schedule = await add(connection, cron="0 6 * * *", timezone="Asia/Kolkata")
    await leader().fire(20)
    planned = (await row(connection, schedule))["next_run_at"].astimezone(UTC)
    assert (planned.hour, planned.minute) == (0, 30)


async def test_a_disabled_schedule_does_nothing(connection, leader):
    await add(connection, enabled=False)
    await leader().fire(20)
    assert await jobs(connection) == []


@pytest.mark.spec("S187", "D59")
@pytest.mark.parametrize(
    ("catch_up", "cron", "late", "made"),
    [
        ("skip", "* * * * *", "1 s", 1),
        ("skip", "* * * * *", "6 h", 1),  # the minute that has just begun is in time
        ("once", "* * * * *", "6 h", 1),
        ("all", "* * * * *", "1 h", 61),
        ("all", "*/10 * * * *", "3 d", 144),  # of the last day, in two batches
    ],
)
async def test_missed_minutes_are_made_up_by_the_documented_rule(
    connection, leader, catch_up, cron, late, made
):
    minute = "date_trunc('minute', clock_timestamp())"
    schedule = await add(connection, catch_up=catch_up, cron=cron)
    await connection.execute(
        f"UPDATE jobqueue_schedule SET next_run_at = {minute} - interval '{late}'"
    )
    rounds, one_leader = 0, leader()
    while (await row(connection, schedule))["next_run_at"] <= datetime.now(UTC):
        before = len(await jobs(connection))
        await one_leader.fire(20)
        assert len(await jobs(connection)) - before <= 100
        rounds += 1
        assert rounds < 40
    assert made <= len(await jobs(connection)) <= made + 2  # a minute may begin meanwhile
    order = (
        "SELECT array_agg(tick_at ORDER BY id) = array_agg(tick_at ORDER BY tick_at) "
        "FROM jobqueue_scheduletick"
    )
    assert await one(connection, order)


@pytest.mark.spec("S187")
async def test_a_skipped_tick_is_not_made_up(connection, leader):
    await add(connection, catch_up="skip", cron="0 0 1 1 *", next_run_at=ago(3600))
    await leader().fire(20)
    assert await jobs(connection) == []


BROKEN = [
    {"cron": "61 * * * *"},
    {"timezone": "Europe/Nowhere"},
    {"args": [1, 2, 3]},
    {"queue": "no such queue"},
    {"priority": 500},
]


@pytest.mark.spec("S186", "A17")
@pytest.mark.parametrize("broken", BROKEN, ids=lambda value: next(iter(value)))
async def test_a_broken_schedule_is_disabled_after_three_strikes_and_stops_no_other(
    connection, leader, broken
):
    bad = await add(connection, **broken)
    good = await add(connection)
    one_leader = leader()
    for strike in range(1, STRIKES + 1):
        assert (await row(connection, bad))["enabled"]
        await one_leader.fire(20)
        after = await row(connection, bad)
        assert after["strikes"] == strike
        assert after["last_error"]
        await connection.execute("UPDATE jobqueue_schedule SET next_run_at = clock_timestamp()")
    assert not after["enabled"]
    assert after["disabled_reason"].startswith("automatic: ")
    assert (await row(connection, good))["strikes"] == 0
    assert len(await jobs(connection)) == STRIKES


@pytest.mark.spec("S186")
async def test_two_leaders_count_one_failure_once(connection, leader):
    bad = await add(connection, args=[1, 2, 3])
    await asyncio.gather(leader().fire(20), leader().fire(20))
    assert (await row(connection, bad))["strikes"] == 1


@pytest.mark.spec("S186")
async def test_a_success_clears_the_strikes(connection, leader):
    schedule = await add(connection, strikes=2, last_error="earlier")
    await leader().fire(20)
    after = await row(connection, schedule)
    assert (after["strikes"], after["last_error"]) == (0, "")


@pytest.mark.spec("S186")
async def test_a_transient_error_is_no_strike_and_stops_no_other_schedule(
    connection, leader, monkeypatch
):
    stormy, fine = await add(connection), await add(connection, next_run_at=ago(0))
    real = schedules.tick

    async def tick(connection, schedule, at, by):
        if schedule == stormy:
            raise psycopg.errors.DeadlockDetected("deadlock")
        return await real(connection, schedule, at, by)

    monkeypatch.setattr(schedules, "tick", tick)
    with pytest.raises(psycopg.errors.DeadlockDetected):
        await leader().fire(20)
    after = await row(connection, stormy)
    assert (after["strikes"], after["enabled"]) == (0, True)
    assert len(await jobs(connection)) == 1
    assert (await row(connection, fine))["last_run_at"] is not None


async def test_an_unknown_task_waits_for_newer_code_and_is_disabled_at_last(connection, leader):
    schedule = await add(
        connection, task="tests.sample_tasks.of_the_next_release", cron="0 0 1 1 *"
    )
    await leader().fire(20)
    after = await row(connection, schedule)
    assert (after["enabled"], after["strikes"]) == (True, 0)
    assert "UnknownTask" in after["last_error"]
    await connection.execute("UPDATE jobqueue_schedule SET next_run_at = now() - interval '2 d'")
    await leader().fire(20)
    assert not (await row(connection, schedule))["enabled"]


UNREADABLE = {
    "a number of 1e5000": ("args", "[1e5000]", "args cannot be read"),
    "5,000 digits": ("kwargs", f'{{"text": {"9" * 5_000}}}', "kwargs cannot be read"),
    "deeply nested": ("args", "[" * 3_000 + "]" * 3_000, "nested"),
    "no array": ("args", '{"a": 1}', "args is not a JSON array"),
    "no object": ("kwargs", "null", "kwargs is not a JSON object"),
    "before every date": ("next_run_at", "-infinity", "next_run_at -infinity is beyond"),
    "before Christ": ("next_run_at", "0044-03-15 12:00:00+00 BC", "BC is beyond"),
}


@pytest.fixture
def without_constraints(transactional_db):
    """As somebody may have altered the table."""
    before = [*Schedule._meta.constraints]
    with django_connection.schema_editor() as editor:
        for constraint in before:
            editor.remove_constraint(Schedule, constraint)
    yield
    Schedule.objects.all().delete()
    with django_connection.schema_editor() as editor:
        for constraint in before:
            editor.add_constraint(Schedule, constraint)


@pytest.mark.parametrize(("column", "value", "said"), UNREADABLE.values(), ids=UNREADABLE)
async def test_a_row_that_python_cannot_read_gets_a_strike_and_stops_no_other(
    without_constraints, connection, leader, column, value, said
):
    bad = await add(connection, cron="0 0 1 1 *")
    kind = "timestamptz" if column == "next_run_at" else "jsonb"
    change = f"UPDATE jobqueue_schedule SET {column} = %s::{kind} WHERE id = %s"
    await connection.execute(change, [value, bad])
    good = await add(connection)
    one_leader = leader()
    await one_leader.fire(20)
    assert len(await jobs(connection)) == 1
    seen = "SELECT last_run_at IS NOT NULL FROM jobqueue_schedule WHERE id = %s"
    assert await one(connection, seen, good)
    cursor = await connection.execute(
        "SELECT strikes, enabled, next_run_at > now(), last_error FROM jobqueue_schedule "
        "WHERE id = %s",
        [bad],
    )
    strikes, enabled, planned, error = await cursor.fetchone()
    assert (strikes, enabled, planned) == (1, True, True)
    assert said in error
    await one_leader.plan_next(20)


@pytest.mark.parametrize(
    ("column", "value"),
    [(c, v) for c, v, _ in UNREADABLE.values() if c == "next_run_at"]
    + [("args", "{}"), ("kwargs", "[]"), ("last_run_at", "infinity")],
)
async def test_the_table_refuses_what_python_cannot_read(connection, column, value):
    schedule = await add(connection)
    kind = "timestamptz" if column.endswith("_at") else "jsonb"
    change = f"UPDATE jobqueue_schedule SET {column} = %s::{kind} WHERE id = %s"
    with pytest.raises(psycopg.errors.CheckViolation):
        await connection.execute(change, [value, schedule])


async def test_a_task_whose_module_asks_the_database_is_imported_as_jobs_import_it(
    connection, leader
):
    name = "tests.unit.asking_module"
    sys.modules.pop(name, None)
    tasks._known.pop(f"{name}.found", None)
    schedule = await add(connection, task=f"{name}.found")
    await leader().fire(20)
    assert (await row(connection, schedule))["last_error"] == ""
    assert [job["task"] for job in await jobs(connection)] == [f"{name}.found"]
    assert sys.modules[name].IMPORTED_IN == "schedule-imports"


async def test_an_import_that_takes_long_holds_up_no_other_schedule(
    connection, leader, monkeypatch
):
    monkeypatch.setattr(cron_steps, "IMPORT_SECONDS", 0.2)
    go = threading.Event()

    def slow(path):
        go.wait(30)
        return tasks.resolve(path)

    monkeypatch.setattr(cron_steps, "resolve", slow)
    tasks._known.pop("tests.sample_tasks.send", None)
    late = await add(connection, next_run_at=ago(5))
    try:
        tasks.resolve("tests.sample_tasks.post")
        fine = await add(connection, task="tests.sample_tasks.post", args=["a"])
        one_leader = leader()
        await one_leader.fire(20)
        assert (await row(connection, fine))["last_run_at"] is not None
        after = await row(connection, late)
        assert (after["last_run_at"], after["strikes"], after["enabled"]) == (None, 0, True)
        assert "takes longer than" in after["last_error"]
    finally:
        go.set()
    await until(lambda: tasks.known("tests.sample_tasks.send"))
    await until(lambda: fired(one_leader, connection, late))


async def fired(one_leader, connection, schedule):
    await one_leader.plan_next(20)
    await one_leader.fire(20)
    return (await row(connection, schedule))["last_run_at"] is not None


async def test_the_look_says_when_the_next_tick_is_due(connection, leader):
    woken = []
    one_leader = leader()
    one_leader.wake = lambda name, moment: woken.append((name, moment))
    await one_leader.plan_next(20)
    assert woken == []
    await add(connection, next_run_at=ahead(30))
    await one_leader.plan_next(20)
    [(name, moment)] = woken
    assert name == "tick"
    assert 20 < moment - asyncio.get_running_loop().time() <= 30.5


async def test_without_a_database_the_step_fails_as_transient(leader):
    one_leader = leader()
    one_leader.session.parameters.known["port"] = "1"
    with pytest.raises((CallTimeout, psycopg.OperationalError)):
        await one_leader.plan_next(20)
