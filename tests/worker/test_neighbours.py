"""Deaths certified by a neighbour, on record and heard of."""

import dataclasses
import json
import subprocess
import sys

import pytest

from jobqueue.conf import Settings
from jobqueue.store import deaths, heartbeat, leadership
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.worker.process import liveness
from tests.rows import add_worker, ago, one

pytestmark = [
    pytest.mark.skipif(liveness.identity().pid_started is None, reason="this system has no /proc"),
    pytest.mark.spec("S109"),
]

LEASES = {"lease": 30, "leader_lease": 15}


@pytest.fixture
def dead():
    """The facts of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return dataclasses.asdict(dataclasses.replace(liveness.identity(), pid=process.pid))


@pytest.fixture
def mine():
    return dataclasses.asdict(liveness.identity())


@pytest.fixture
def settings():
    return Settings()


def detector_of(parameters, me, settings):
    return liveness.DeadWorkerDetector(
        Session(ConnectionParameters.fixed(parameters), "test"), me, settings
    )


async def died(connection, worker):
    return await one(connection, "SELECT died_at FROM jobqueue_worker WHERE id = %s", worker)


async def test_a_silent_dead_neighbour_is_certified_once_and_announced(
    connection, connect, parameters, settings, mine, dead
):
    me = await add_worker(connection, **mine)
    lost = await add_worker(connection, **dead, last_seen_at=ago(8))
    await leadership.elect(connection, lost, 15)
    listener = await connect()
    await listener.execute("LISTEN jobqueue")
    detector = detector_of(parameters, me, settings)
    assert await detector.detect() == 1
    assert await died(connection, lost) is not None
    notes = [json.loads(n.payload) async for n in listener.notifies(timeout=5, stop_after=2)]
    assert notes == [{"kind": "died", "worker": str(lost)}, {"kind": "leader"}]
    assert await detector.detect() == 0
    await detector.session.close()


async def test_a_dead_neighbour_that_was_heard_of_lately_is_not_looked_at(
    connection, parameters, settings, mine, dead
):
    me = await add_worker(connection, **mine)
    lost = await add_worker(connection, **dead, last_seen_at=ago(5))
    detector = detector_of(parameters, me, settings)
    assert await detector.detect() == 0
    assert await died(connection, lost) is None
    await detector.session.close()


async def test_a_silent_but_living_neighbour_is_never_certified(
    connection, parameters, settings, mine
):
    me = await add_worker(connection, **mine)
    frozen = await add_worker(connection, **mine, last_seen_at=ago(3600))
    detector = detector_of(parameters, me, settings)
    assert await detector.detect() == 0
    assert await died(connection, frozen) is None
    await detector.session.close()


async def test_a_worker_of_another_machine_is_never_certified(
    connection, parameters, settings, mine, dead
):
    me = await add_worker(connection, **mine)
    other = await add_worker(connection, **{**dead, "boot_id": "other"}, last_seen_at=ago(3600))
    detector = detector_of(parameters, me, settings)
    assert await detector.detect() == 0
    assert await died(connection, other) is None
    await detector.session.close()


async def test_a_beat_between_the_look_and_the_certificate_wins(connection, mine, dead):
    me = await add_worker(connection, **mine)
    await add_worker(connection, **dead, last_seen_at=ago(8))
    [row] = await deaths.silent(connection, me, 7)
    await connection.execute("UPDATE jobqueue_worker SET last_seen_at = last_seen_at + '0.5 s'")
    assert await deaths.certify(connection, row, 7) is None


async def test_the_beat_shows_silent_neighbours_at_no_further_statement(connection, mine, dead):
    me = await add_worker(connection, **mine)

    async def beat():
        return await heartbeat.beat(connection, me, [], **LEASES, phase="RUNNING", wake="")

    await add_worker(connection, **dead, last_seen_at=ago(5))
    assert not (await beat()).silent
    await add_worker(connection, **dead, last_seen_at=ago(8))
    assert (await beat()).silent


async def test_the_beat_calls_the_role_of_a_certified_dead_leader_vacant(connection, mine):
    me, leader = await add_worker(connection, **mine), await add_worker(connection)
    await leadership.elect(connection, leader, 15)

    async def beat():
        return await heartbeat.beat(connection, me, [], **LEASES, phase="RUNNING", wake="")

    assert not (await beat()).leader_vacant
    await connection.execute(
        "UPDATE jobqueue_worker SET died_at = clock_timestamp() WHERE id = %s", [leader]
    )
    assert (await beat()).leader_vacant


async def test_a_supervisor_certifies_the_children_it_has_reaped(connection):
    ours = await add_worker(connection, supervisor="s1", pid=10)
    other = await add_worker(connection, supervisor="s1", pid=10)
    clean = await add_worker(connection, supervisor="s1", pid=11, phase="STOPPED")
    found = await deaths.certify_reaped(connection, [ours, clean])
    assert [death.worker for death in found] == [ours]
    assert await died(connection, other) is None
    assert await died(connection, clean) is None
