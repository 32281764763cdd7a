"""Databases for measurements: each run has a fresh one, copied from a migrated template."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks import bare
from project import postgres

TEMPLATE, DATABASE = "jobqueue_benchmark_template", "jobqueue_benchmark"


class Server:
    """A PostgreSQL on which databases may be made and dropped."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fresh(TEMPLATE, "template0")
        environment = {**os.environ, "DATABASE_URL": self.at(TEMPLATE)}
        command = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
        subprocess.run(command, env=environment, check=True)
        self.execute(bare.SCHEMA, database=TEMPLATE)

    def at(self, database: str = DATABASE) -> str:
        """Return the URL of one of its databases."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    def fresh(self) -> str:
        """Drop what the last run created; return the URL of an empty, migrated database."""
        self._fresh(DATABASE, TEMPLATE)
        self.execute("CHECKPOINT")
        return self.at()

    def _fresh(self, database: str, template: str) -> None:
        self.drop(database)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database} TEMPLATE {template}")

    def drop(self, database: str = DATABASE) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def execute(
        self, statement: str, database: str = DATABASE, **parameters: object
    ) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.at(database), autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def cpu_seconds(self) -> float:
        """Return what the sessions of the measured database have used; zero on another machine."""
        query = "SELECT pid FROM pg_stat_activity WHERE datname = %(name)s"
        return sum(cpu_seconds(pid) for (pid,) in self.execute(query, name=DATABASE))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of one process: of its living threads, as the scheduler counts it in
    nanoseconds. Other counters have ticks that are too coarse for an idle process."""
    total = 0
    for book in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # it has just ended
            total += int(book.read_text().split()[0])
    return total / 1e9


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Return the server of DATABASE_URL where set, otherwise an embedded one of the benchmarks."""
    with postgres.running(postgres.BENCHMARKS) as url:
        server = Server(url)
        try:
            yield server
        finally:
            server.drop()
            server.drop(TEMPLATE)
