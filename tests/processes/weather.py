"""A server of the test's own, whose weather the test makes, and workers behind a proxy."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import scalar_row

from project.postgres import Server
from tests.children import ROOT
from tests.processes.effects import TABLE
from tests.processes.proxy import Proxy
from tests.waiting import until

ROLE, NAME = "app", "queue"
SHORT = {
    "LEASE_SECONDS": 6,
    "HEARTBEAT_SECONDS": 1,
    "CANCEL_SECONDS": 1,
    "DRAIN_SECONDS": 5,
    "POLL_SECONDS": 2,
    "LEADER_LEASE_SECONDS": 3,
}
GRANTS = f"""
CREATE ROLE {ROLE} LOGIN;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE}
"""
UNFINISHED = "SELECT count(*) FROM jobqueue_job WHERE finished_at IS NULL"


class Sky:
    """The server, and an operator's connection to it that never goes through the proxy."""

    def __init__(self, server: Server) -> None:
        self.server = server
        # What a test sets for the whole database is not for the operator.
        options = "-c default_transaction_read_only=off"
        self.parameters = {**conninfo_to_dict(server.url), "dbname": NAME, "options": options}

    def connect(self, **changes: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(autocommit=True, **{**self.parameters, **changes})

    def do(self, statement: str, *values: Any, **changes: Any) -> Any:
        """Run one statement (or several without values); return the first column of the first."""
        with self.connect(**changes) as connection:
            cursor = connection.cursor(row_factory=scalar_row)
            cursor.execute(statement.encode(), values or None)
            return cursor.fetchone() if cursor.description else None

    async def ask(self, statement: str, *values: Any) -> Any:
        return await asyncio.to_thread(self.do, statement, *values)

    def clear(self) -> None:
        self.do(f"ALTER ROLE {ROLE} RESET ALL; ALTER ROLE {ROLE} CONNECTION LIMIT -1")
        self.do(f"ALTER DATABASE {NAME} RESET ALL")
        self.end_sessions()
        tables = self.do(
            "SELECT string_agg(quote_ident(tablename), ', ') FROM pg_tables "
            "WHERE tablename LIKE 'jobqueue%' OR tablename = 'effect'"
        )
        self.do(f"TRUNCATE {tables}")

    def end_sessions(self, purpose: str = "%") -> int:
        """Terminate the workers' sessions of one purpose; return how many there were."""
        return int(
            self.do(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
                "WHERE usename = %s AND application_name LIKE %s",
                ROLE,
                purpose,
            )
        )


def migrated(folder: Path) -> Server:
    server = Server(folder)
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {NAME}")
    url = server.url.replace("/postgres?", f"/{NAME}?")
    subprocess.run(
        [sys.executable, ROOT / "manage.py", "migrate", "-v0"],
        env={**os.environ, "DATABASE_URL": url},
        check=True,
    )
    sky = Sky(server)
    sky.do(TABLE)
    sky.do(GRANTS)
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="weather-", dir="/tmp"))
    server = Server(folder)
    try:
        yield migrated(folder)
    finally:
        server.remove()


@pytest.fixture
def sky(server: Server) -> Sky:
    sky = Sky(server)
    sky.clear()
    return sky


class Worker:
    """A worker process behind a proxy of its own."""

    def __init__(
        self, sky: Sky, proxy: Proxy, log: Path, settings: dict[str, Any], options: tuple[str, ...]
    ) -> None:
        self.proxy, self.log = proxy, log
        host, port = proxy.address
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, ROOT / "manage.py", "runworker", *options],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DATABASE_URL": f"postgresql://{ROLE}@{host}:{port}/{NAME}",
                    "DJANGO_SETTINGS_MODULE": "tests.processes.worker_settings",
                    "JOBQUEUE": json.dumps({**SHORT, **settings}),
                },
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=subprocess.STDOUT,
            )

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def events(self, name: str) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == name:
                    found.append(event)
        return found

    async def started(self) -> None:
        await until(lambda: self.events("worker_started") or not self.lives, seconds=40)
        assert self.lives, self.log.read_text()[-4000:]

    async def stop(self) -> int:
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, 30)


class Site:
    """Workers of one test, the jobs that were committed, and what must be true at its end."""

    def __init__(self, sky: Sky, folder: Path) -> None:
        self.sky, self.folder = sky, folder
        self.workers: list[Worker] = []
        self.jobs = 0

    async def worker(self, *options: str, **settings: Any) -> Worker:
        worker = await self.start(*options, **settings)
        await worker.started()
        return worker

    async def start(self, *options: str, **settings: Any) -> Worker:
        parameters = self.sky.parameters
        port = int(parameters.get("port") or 5432)
        proxy = await Proxy(str(parameters["host"]), port).__aenter__()
        log = self.folder / f"worker-{len(self.workers)}.log"
        self.workers.append(Worker(self.sky, proxy, log, settings, options))
        return self.workers[-1]

    async def enqueue(
        self, kind: str = "plain", count: int = 1, seconds: float = 0.0, **columns: Any
    ) -> None:
        """Jobs that retry at once and often enough to outlive any weather."""
        row = {"max_attempts": 50, "options": json.dumps({"backoff": 0.1}), **columns}
        names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
        await self.sky.ask(
            f"INSERT INTO jobqueue_job (task, args, {names}) "
            f"SELECT %s, jsonb_build_array(%s::float), {marks} FROM generate_series(1, %s)",
            f"tests.processes.effects.{kind}",
            seconds,
            *row.values(),
            count,
        )
        self.jobs += count

    async def feed(self, seconds: float, kinds: tuple[str, ...] = ("plain", "coroutine")) -> None:
        """Steady load, from a web site that meets the same weather."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            for kind in kinds:
                with contextlib.suppress(psycopg.OperationalError):
                    await self.enqueue(kind, 3, 0.02)
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Every job ended well; effects are as many as attempts say; nothing hangs open."""

        async def all_final() -> bool:
            assert all(worker.lives for worker in self.workers)
            return bool(await self.sky.ask(UNFINISHED) == 0)

        await until(all_final, seconds=60, every=0.2)
        ask = self.sky.ask
        assert await ask("SELECT count(*) FROM jobqueue_job") >= self.jobs > 0
        succeeded = "SELECT count(*) FROM jobqueue_job WHERE state <> 'SUCCEEDED'"
        assert await ask(succeeded) == 0
        assert await ask(ATTEMPTS_NOT_COUNTED) == 0
        assert await ask(EFFECTS_WITHOUT_ATTEMPT) == 0
        assert await ask(SUCCESSES_WITHOUT_EFFECT) == 0
        in_transaction = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state LIKE 'idle in%'"
        )

        async def none_in_transaction() -> bool:
            # A living worker has one for a moment now and then.
            return bool(await ask(in_transaction) == 0)

        await until(none_in_transaction)

    async def end(self) -> None:
        for worker in self.workers:
            if worker.lives:
                worker.process.kill()
            await asyncio.to_thread(worker.process.wait)
            await worker.proxy.__aexit__()


ATTEMPTS_NOT_COUNTED = """
SELECT count(*) FROM jobqueue_job j
WHERE j.attempts <> (SELECT count(*) FROM jobqueue_attempt a WHERE a.job_id = j.id)
   OR j.attempts <> (SELECT max(a.number) FROM jobqueue_attempt a WHERE a.job_id = j.id)
   OR 1 <> (SELECT count(*) FROM jobqueue_attempt a
            WHERE a.job_id = j.id AND a.outcome = 'SUCCEEDED')
"""
EFFECTS_WITHOUT_ATTEMPT = """
SELECT count(*) FROM effect e WHERE NOT EXISTS (
    SELECT FROM jobqueue_attempt a WHERE a.job_id = e.job AND a.number = e.attempt)
"""
SUCCESSES_WITHOUT_EFFECT = """
SELECT count(*) FROM jobqueue_attempt a JOIN jobqueue_job j ON j.id = a.job_id
WHERE a.outcome = 'SUCCEEDED' AND j.task NOT LIKE '%.idle' AND NOT EXISTS (
    SELECT FROM effect e WHERE e.job = a.job_id AND e.attempt = a.number)
"""
