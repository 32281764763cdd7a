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


READY = "SELECT state = 'READY' FROM jobqueue_job WHERE id = %s"
FREE = "SELECT state <> 'RUNNING' FROM jobqueue_job WHERE id = %s"


@pytest.mark.timeout(120)
@pytest.mark.spec("S166", "S170", "S171", "S174", "S175", "S176", "S182", "S185", "A20")
async def test_a_successor_leads_alone_and_every_tick_happens_once(make_fleet, connection):
    fleet = await make_fleet()
    for way in ("stop", "cut", "term", "kill"):
        await change(fleet, connection, way)
    await fleet.diary.every_tick_happened_once(connection)


async def change(fleet, connection, way):
    old, term = await until(fleet.leader), max(fleet.diary.terms)
    due = await add_job(connection, state="SCHEDULED", run_at=ahead(1))
    await strike(fleet, old, way)
    new = await until(lambda: fleet.leader_other_than(old), seconds=30)
    await until(lambda: max(fleet.diary.terms) > term)
    latest = max(fleet.diary.terms)
    assert fleet.diary.terms[latest] == new.id
    if way == "stop":
        old.process.send_signal(signal.SIGCONT)
    old.proxy.swallow = False
    seen = fleet.diary.moved
    await until(lambda: fleet.diary.moved >= seen + 3, seconds=30)
    await until(lambda: one(connection, READY, due))
    # The old one, thawed or reachable again, has not led on.
    assert await fleet.leader() is new
    assert max(fleet.diary.terms) == latest


@pytest.mark.spec("S109", "S183", "D96")
async def test_the_jobs_of_killed_neighbours_come_back_long_before_their_lease_ends(
    make_fleet, connection
):
    fleet = await make_fleet()
    leader = await until(fleet.leader)
    follower = next(node for node in fleet.nodes if node is not leader)
    for node in (follower, leader):
        job, _ = await add_running(connection, worker=UUID(node.id), lease=ahead(600))
        await strike(fleet, node, "kill")
        await until(lambda job=job: one(connection, FREE, job), seconds=60)


@pytest.mark.spec("S109", "S183", "D17")
async def test_the_jobs_of_a_killed_stranger_come_back_when_their_lease_ends(
    make_fleet, connection
):
    if not gives_namespaces():
        pytest.skip("this system gives no namespaces")
    fleet = await make_fleet(size=1)
    stranger = await fleet.add(*APART)
    job, _ = await add_running(connection, worker=UUID(stranger.id), lease=ahead(2.5))
    await strike(fleet, stranger, "kill")
    before = "SELECT lease_expires_at FROM jobqueue_job WHERE id = %s"
    expires = await one(connection, before, job)
    await until(lambda: one(connection, FREE, job), seconds=60)
    ended = await one(connection, "SELECT max(finished_at) FROM jobqueue_attempt")
    assert ended >= expires
    died = "SELECT died_at FROM jobqueue_worker WHERE id = %s"
    assert await one(connection, died, UUID(stranger.id)) is None
