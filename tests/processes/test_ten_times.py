"""Real workers at default settings: when the next one leads, and when lost jobs come back.

Ten times each, with the figures printed. Long; what is short of it is in CI elsewhere.
"""

import asyncio
import os
import signal
import time

import pytest
import pytest_asyncio

from jobqueue.conf import Settings
from tests.processes.diary import Diary
from tests.processes.team import NAP, Team, gives_namespaces
from tests.rows import history, insert, job_row, one
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ROUNDS = 10
DEFAULTS = Settings()
LOOK, SLACK = 5.0, 1.0  # of the leader for lapsed leases; what a round trip and a start may add
BEAT = DEFAULTS.heartbeat_seconds + DEFAULTS.beat_budget_seconds
# Seconds. Killed: a neighbour misses its beat, and certifies at its own next one.
LIMITS = {
    "term": 1.0,
    "kill": DEFAULTS.heartbeat_seconds + BEAT + SLACK,
    "stop": DEFAULTS.leader_lease_seconds + LOOK + SLACK,
    "cut": DEFAULTS.leader_lease_seconds + LOOK + SLACK,
}
SUPERVISED, NEIGHBOUR = 2.0, LIMITS["kill"]
ALONE = DEFAULTS.lease_seconds + LOOK + SLACK
MINUTES = """
SELECT array_agg(EXTRACT(EPOCH FROM tick_at)::bigint / 60 ORDER BY tick_at)
FROM jobqueue_scheduletick t JOIN jobqueue_schedule s ON s.id = t.schedule_id
WHERE s.name = 'minutely'
"""
UNFINISHED = "SELECT count(*) FROM jobqueue_job WHERE state NOT IN ('SUCCEEDED')"


@pytest_asyncio.fixture
async def team(fleet, parameters, connection):
    team = Team(fleet, parameters, connection)
    yield team
    await team.end()


@pytest_asyncio.fixture
async def diary(connect):
    diary = Diary(await connect(), NAP)
    await diary.begin(args=[0])
    keeping = asyncio.create_task(diary.keep())
    yield diary
    keeping.cancel()
    (result,) = await asyncio.gather(keeping, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError), result


@pytest.fixture
def report(capsys):
    def report(what, times):
        figures = " ".join(f"{seconds:.2f}" for seconds in sorted(times))
        with capsys.disabled():
            print(f"\n{what}: {figures}")

    return report


async def change(team, way):
    """Do this to the leader; return the seconds until another one leads."""
    old = await team.a_leader()
    begin = time.monotonic()
    match way:
        case "term":
            old.running.send(signal.SIGTERM)
        case "kill":
            await asyncio.to_thread(old.kill)
        case "stop":
            old.running.send(signal.SIGSTOP)
        case "cut":
            old.proxy.swallow = True
    await until(lambda: team.successor(old), seconds=90, every=0.005)
    took = time.monotonic() - begin
    lost = len(old.running.events("leader_lost"))
    match way:
        case "term":
            assert await asyncio.to_thread(old.running.ended, 40) == 0
            await team.replace(old)
        case "kill":
            await team.replace(old)
        case "stop":
            old.running.send(signal.SIGCONT)
            await until(lambda: len(old.running.events("leader_lost")) > lost, seconds=20)
            await team.is_back(old)
        case "cut":
            assert len(old.running.events("leader_lost")) == lost  # noticed without an answer
            old.proxy.swallow = False
            await team.is_back(old)
    return took


@pytest.mark.spec("S166", "S169", "S170", "S174", "S176", "S185", "D61", "D63")
@pytest.mark.parametrize("way", LIMITS)
async def test_the_leader_changes_and_every_tick_happens_once(team, diary, connection, way, report):
    minutely = {"name": "minutely", "task": NAP, "args": [0], "cron": "* * * * *"}
    await insert(
        connection, "jobqueue_schedule", "id", {**minutely, "catch_up": "all", "queue": "mail"}
    )
    for _ in range(3):
        await team.add()
    times = [await change(team, way) for _ in range(ROUNDS)]
    report(f"leader, {way}", times)
    assert max(times) <= LIMITS[way]
    await each_term_had_one_leader(team, diary)
    await until(lambda: no_minute_is_missing(connection), seconds=90)
    await diary.every_tick_happened_once(connection)
    await until(lambda: one(connection, f"SELECT ({UNFINISHED}) = 0"), seconds=60)


async def each_term_had_one_leader(team, diary):
    """By what the workers say of themselves, and by what stood in the table."""
    elected = [(term, str(member.id)) for member in team.all for term in member.terms()]
    assert len({term for term, _ in elected}) == len(elected) > ROUNDS
    assert diary.terms.items() <= dict(elected).items()


async def no_minute_is_missing(connection):
    """Up to the last one; the fast schedule's jobs apart."""
    minutes = await one(connection, MINUTES)
    assert minutes == list(range(minutes[0], minutes[-1] + 1))
    return minutes[-1] >= int(await one(connection, "SELECT EXTRACT(EPOCH FROM now())")) // 60


async def recovery(team, member, *, certified):
    """Kill a worker that runs a job; return the seconds until the job may run again."""
    connection = team.connection
    job = await team.nap(member.options[1])
    held = await job_row(connection, job)
    assert held["worker"] == member.id
    begin, before = time.monotonic(), await one(connection, "SELECT clock_timestamp()")
    await asyncio.to_thread(member.kill)
    expires = (await job_row(connection, job))["lease_expires_at"]
    took = await came_back(connection, job, begin, held["lease_token"])
    (lost,) = await history(connection, job)
    died = await one(connection, "SELECT died_at FROM jobqueue_worker WHERE id = %s", member.id)
    assert lost["outcome"] == "LOST"
    if certified:
        assert before < died < lost["finished_at"]
    else:
        assert died is None
        assert lost["finished_at"] >= expires
    await connection.execute("DELETE FROM jobqueue_attempt")
    await connection.execute("DELETE FROM jobqueue_job")
    return took


async def came_back(connection, job, begin, token):
    """The seconds until it was taken from its dead holder."""
    back = "SELECT lease_token IS DISTINCT FROM %s FROM jobqueue_job WHERE id = %s"
    await until(lambda: one(connection, back, token, job), seconds=90, every=0.005)
    return time.monotonic() - begin


VICTIMS = {"leader": Team.a_leader, "follower": Team.a_follower}


@pytest.mark.spec("S109", "S176", "S183")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_jobs_of_a_killed_worker_come_back_by_a_neighbour(team, victim, report):
    for queue in ("mail", "imports", "default"):
        await team.add("--queues", queue)
    times = []
    for _ in range(ROUNDS):
        member = await VICTIMS[victim](team)
        times.append(await recovery(team, member, certified=True))
        await team.replace(member)
    report(f"recovery by a neighbour, {victim}", times)
    assert max(times) <= NEIGHBOUR


@pytest.mark.spec("S109", "S176", "S183")
@pytest.mark.skipif(not gives_namespaces(), reason="this system gives no namespaces")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_jobs_of_a_killed_worker_come_back_when_it_was_alone(team, victim, report):
    for queue in ("mail", "imports", "default"):
        await team.add("--queues", queue, apart=True)
    times = []
    for _ in range(ROUNDS):
        member = await VICTIMS[victim](team)
        times.append(await recovery(team, member, certified=False))
        await team.replace(member)
    report(f"recovery alone, {victim}", times)
    assert max(times) <= ALONE


HELD = "SELECT id, worker, lease_token FROM jobqueue_job WHERE state = 'RUNNING'"
CHILDREN = 4


@pytest.mark.spec("S109", "S176", "S183", "S196")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_jobs_of_a_killed_worker_come_back_under_a_supervisor(
    team, connection, victim, report
):
    options = ("--processes", str(CHILDREN), "--concurrency", "1", "--queues", "default")
    await team.add(*options)
    for _ in range(CHILDREN):
        await team.nap("default")
    times = []
    for _ in range(ROUNDS):
        job, worker, token = await until(lambda: held_by(connection, victim), seconds=90)
        pid = await one(connection, "SELECT pid FROM jobqueue_worker WHERE id = %s", worker)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        times.append(await came_back(connection, job, begin, token))
    report(f"recovery under a supervisor, {victim}", times)
    assert max(times) <= SUPERVISED


async def held_by(connection, victim):
    """Of the children, each with one job: the leader's, or the oldest of another one."""
    rows = await (await connection.execute(HELD + " ORDER BY claimed_at")).fetchall()
    leader = await one(connection, "SELECT holder FROM jobqueue_leaderlease")
    if len(rows) < CHILDREN or leader not in {worker for _, worker, _ in rows}:
        return None
    return next(row for row in rows if (row[1] == leader) == (victim == "leader"))


EXPIRES = "SELECT expires_at FROM jobqueue_leaderlease"
LATER = f"SELECT ({EXPIRES}) > %s"


@pytest.mark.spec("S168", "S170", "D62")
async def test_the_leader_does_not_change_because_the_database_is_far_away(team, connection):
    for _ in range(3):
        (await team.add()).proxy.delay = (0.1, 0.5)
    leader = await team.a_leader()
    term = await one(connection, "SELECT term FROM jobqueue_leaderlease")
    for _ in range(2 * ROUNDS):
        before = await one(connection, EXPIRES)
        await until(lambda before=before: one(connection, LATER, before), seconds=15)
    assert await team.leader() is leader
    assert await one(connection, "SELECT term FROM jobqueue_leaderlease") == term


def test_the_limits_follow_from_the_contract():
    assert (SUPERVISED, NEIGHBOUR, ALONE) == (2, 13, 36)
    assert LIMITS == {"term": 1, "kill": 13, "stop": 21, "cut": 21}
