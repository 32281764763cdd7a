"""Several real workers at default settings, each with a way to the database of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
from asyncio import to_thread
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.processes.fleet import Fleet, Running
from tests.processes.proxy import Proxy
from tests.rows import Connection, add_job, one
from tests.waiting import until

NAP = "tests.processes.tempers.nap"
HOLDER = "SELECT holder FROM jobqueue_leaderlease WHERE expires_at > clock_timestamp()"
READY = """SELECT pg_notify('jobqueue', '{"kind": "ready"}')"""
SEEN = "SELECT last_seen_at > %s FROM jobqueue_worker WHERE id = %s"
APART = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def gives_namespaces() -> bool:
    """Whether a process may have a pid namespace of its own; it stands for another host."""
    if not shutil.which("unshare"):
        return False
    return not subprocess.run([*APART, "true"], capture_output=True, check=False).returncode


@dataclass(eq=False)
class Member:
    running: Running
    proxy: Proxy
    options: tuple[str, ...]
    apart: bool
    id: UUID

    def terms(self) -> list[int]:
        """The terms that it says it was elected for."""
        return [event["term"] for event in self.running.events("leader_elected")]

    def kill(self) -> None:
        """kill -9; returns when the process is gone."""
        process = self.running.process
        if self.apart:  # the one behind `unshare`, which ends with it
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            subprocess.run(["kill", "-9", *children.split()], check=True)
        else:
            process.kill()
        process.wait()


class Team:
    """Started, watched and ended by one test."""

    def __init__(self, fleet: Fleet, parameters: dict[str, Any], connection: Connection) -> None:
        self.fleet, self.parameters, self.connection = fleet, parameters, connection
        self.members: list[Member] = []  # those that live
        self.all: list[Member] = []
        fleet.settings = {}

    async def add(self, *options: str, apart: bool = False) -> Member:
        """Start a worker; returns once it serves."""
        proxy = await self._proxy()
        self.fleet.before = APART if apart else []
        running = await to_thread(self.fleet.start, *options)
        id = UUID(running.events("worker_started")[0]["worker"])
        member = Member(running, proxy, options, apart, id)
        self.members.append(member)
        self.all.append(member)
        return member

    async def _proxy(self) -> Proxy:
        p = self.parameters
        proxy = await Proxy(p.get("host") or "127.0.0.1", int(p.get("port") or 5432)).__aenter__()
        host, port = proxy.address
        login = f"{p['user']}:{p['password']}" if p.get("password") else p["user"]
        self.fleet.environment["DATABASE_URL"] = f"postgresql://{login}@{host}:{port}/{p['dbname']}"
        return proxy

    async def replace(self, gone: Member) -> Member:
        """Start one like it."""
        self.members.remove(gone)
        return await self.add(*gone.options, apart=gone.apart)

    async def leader(self) -> Member | None:
        holder = await one(self.connection, HOLDER)
        return next((member for member in self.members if member.id == holder), None)

    async def a_leader(self) -> Member:
        found: Member = await until(self.leader, seconds=60)
        return found

    async def successor(self, old: Member) -> Member | None:
        found = await self.leader()
        return None if found is old else found

    async def a_follower(self) -> Member:
        leader = await self.a_leader()
        return next(member for member in self.members if member is not leader)

    async def is_back(self, member: Member) -> None:
        """Wait until its beats arrive again."""
        now = await one(self.connection, "SELECT clock_timestamp()")
        await until(lambda: one(self.connection, SEEN, now, member.id), seconds=60)

    async def nap(self, queue: str, **columns: Any) -> int:
        """Enqueue a job that runs until it is ended; returns once a worker runs it."""
        given = {"max_attempts": 1000, "options": {"backoff": 0.5}, **columns}
        job = await add_job(self.connection, task=NAP, args=[3600], queue=queue, **given)
        await self.connection.execute(READY)
        await until(lambda: self.begun(job, 1), seconds=30)
        return job

    def begun(self, job: int, attempt: int) -> bool:
        return (job, attempt, "begin") in self.fleet.effects()

    async def end(self) -> None:
        for member in self.members:
            if member.running.process.poll() is None:
                member.running.send(signal.SIGCONT)
                member.proxy.heal()
                await to_thread(member.kill)
        for member in self.all:
            await member.proxy.__aexit__()
