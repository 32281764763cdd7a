"""Three processes that would lead, and what is done to the one that does."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from tests.processes.diary import Diary
from tests.processes.proxy import Proxy
from tests.processes.team import APART, HOLDER, gives_namespaces
from tests.rows import add_job, add_running, ahead, one
from tests.waiting import until

NODE = Path(__file__).with_name("run_node.py")
ROOT = NODE.parents[2]
SHORT = {
    "leader_lease_seconds": 2.0,
    "lease_seconds": 4.0,
    "heartbeat_seconds": 0.5,
    "cancel_seconds": 0.5,
}
SEND = "tests.sample_tasks.send"


@dataclass
class Node:
    process: subprocess.Popen[str]
    id: str
    proxy: Proxy


@dataclass
class Fleet:
    """Nodes with a proxy each."""

    connection: Any
    parameters: dict[str, Any]
    settings: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)

    async def add(self, *before: str) -> Node:
        proxy = await Proxy(
            self.parameters.get("host") or "127.0.0.1", int(self.parameters.get("port") or 5432)
        ).__aenter__()
        host, port = proxy.address
        given = {**self.parameters, "host": host, "port": port}
        plain = {key: value for key, value in given.items() if isinstance(value, str | int)}
        process = await asyncio.to_thread(self._start, plain, before)
        node = Node(process, await asyncio.to_thread(_first_line, process), proxy)
        self.nodes.append(node)
        return node

    def _start(self, parameters: dict[str, Any], before: tuple[str, ...]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*before, sys.executable, NODE, json.dumps(parameters), json.dumps(self.settings)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    async def leader(self) -> Node | None:
        holder = await one(self.connection, HOLDER)
        return next((node for node in self.nodes if node.id == str(holder)), None)

    async def leader_other_than(self, old: Node) -> Node | None:
        found = await self.leader()
        return None if found is old else found

    async def end(self, node: Node) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            if node.process.poll() is None:
                node.process.send_signal(number)
        await asyncio.to_thread(node.process.wait)
        node.process.stdout.close()
        await node.proxy.__aexit__()
        self.nodes.remove(node)


def _first_line(process: subprocess.Popen[str]) -> str:
    lines = iter(process.stdout.readline, "")
    return next(line.strip() for line in lines if len(line.strip()) == 36)


@pytest_asyncio.fixture
async def make_fleet(connect, parameters):
    fleets, keepers = [], []

    async def make_fleet(size=3):
        fleet = Fleet(await connect(), parameters, SHORT)
        fleets.append(fleet)
        fleet.diary = Diary(await connect(), SEND)
        await fleet.diary.begin()
        await asyncio.gather(*(fleet.add() for _ in range(size)))
        keepers.append(asyncio.create_task(fleet.diary.keep()))
        await until(lambda: fleet.diary.terms, seconds=40)
        return fleet

    yield make_fleet
    for fleet in fleets:
        for node in list(fleet.nodes):
            await fleet.end(node)
    for keeper in keepers:
        keeper.cancel()
    for result in await asyncio.gather(*keepers, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError), result


async def strike(fleet, node, way):
    """Do this to a node."""
    match way:
        case "term":
            node.process.terminate()
        case "kill":
            node.process.kill()
            await asyncio.to_thread(node.process.wait)
        case "stop":
            node.process.send_signal(signal.SIGSTOP)
        case "cut":
            node.proxy.swallow = True


@pytest.mark.spec("S166", "S174", "S175", "S176", "S185")
@pytest.mark.parametrize("way", ["term", "kill", "stop", "cut"])
async def test_a_successor_leads_and_every_tick_happens_once(make_fleet, way):
    fleet = await make_fleet()
    old, term = await until(fleet.leader), max(fleet.diary.terms)
    await strike(fleet, old, way)
    new = await until(lambda: fleet.leader_other_than(old), seconds=30)
    await until(lambda: max(fleet.diary.terms) > term)
    assert fleet.diary.terms[max(fleet.diary.terms)] == new.id
    if way == "stop":
        old.process.send_signal(signal.SIGCONT)
    old.proxy.swallow = False
    seen = fleet.diary.moved
    await until(lambda: fleet.diary.moved >= seen + 3, seconds=30)
    await fleet.diary.every_tick_happened_once(fleet.connection)


@pytest.mark.spec("S170", "S171", "S176")
async def test_a_frozen_leader_that_wakes_up_does_not_lead_on(make_fleet):
    fleet = await make_fleet()
    old = await until(fleet.leader)
    old.process.send_signal(signal.SIGSTOP)
    new = await until(lambda: fleet.leader_other_than(old), seconds=30)
    old.process.send_signal(signal.SIGCONT)
    term = await one(fleet.connection, "SELECT term FROM jobqueue_leaderlease")
    renewed = await one(fleet.connection, "SELECT expires_at FROM jobqueue_leaderlease")

    async def renewed_again():
        later = "SELECT expires_at > %s FROM jobqueue_leaderlease"
        return await one(fleet.connection, later, renewed)

    await until(renewed_again)
    assert (await fleet.leader()) is new
    assert await one(fleet.connection, "SELECT term FROM jobqueue_leaderlease") == term


@pytest.mark.spec("S182", "S183")
async def test_a_scheduled_job_outlives_its_leader(make_fleet, connection):
    fleet = await make_fleet()
    job = await add_job(connection, state="SCHEDULED", run_at=ahead(2))
    old = await fleet.leader()
    await strike(fleet, old, "kill")
    state = "SELECT state = 'READY' FROM jobqueue_job WHERE id = %s"
    await until(lambda: one(connection, state, job), seconds=30)


async def a_follower(fleet):
    leader = await until(fleet.leader, seconds=60)
    return next(node for node in fleet.nodes if node is not leader)


VICTIMS = {"leader": lambda fleet: until(fleet.leader, seconds=60), "follower": a_follower}


@pytest.mark.spec("S109", "S183")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_the_jobs_of_a_killed_neighbour_come_back_long_before_their_lease_ends(
    make_fleet, victim
):
    fleet = await make_fleet()
    node = await VICTIMS[victim](fleet)
    job, _ = await add_running(fleet.connection, worker=UUID(node.id), lease=ahead(600))
    await strike(fleet, node, "kill")
    back = "SELECT state <> 'RUNNING' FROM jobqueue_job WHERE id = %s"
    await until(lambda: one(fleet.connection, back, job), seconds=60)


@pytest.mark.spec("S109", "S183")
async def test_the_jobs_of_a_killed_stranger_come_back_when_their_lease_ends(make_fleet):
    if not gives_namespaces():
        pytest.skip("this system gives no namespaces")
    fleet = await make_fleet(size=2)
    stranger = await fleet.add(*APART)
    job, _ = await add_running(fleet.connection, worker=UUID(stranger.id), lease=ahead(4))
    await strike(fleet, stranger, "kill")
    back = "SELECT state <> 'RUNNING' FROM jobqueue_job WHERE id = %s"
    before = "SELECT lease_expires_at FROM jobqueue_job WHERE id = %s"
    expires = await one(fleet.connection, before, job)
    await until(lambda: one(fleet.connection, back, job), seconds=60)
    ended = await one(fleet.connection, "SELECT max(finished_at) FROM jobqueue_attempt")
    assert ended >= expires
    died = "SELECT died_at FROM jobqueue_worker WHERE id = %s"
    assert await one(fleet.connection, died, UUID(stranger.id)) is None
