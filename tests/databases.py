"""Databases of their own, beside the one that Django's tests use, and the commands run on them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parents[1]


def url_of(name: str, user: str | None = None) -> str:
    """Return the address of a database of the tests' server, for another user where named."""
    address, mark, options = os.environ["DATABASE_URL"].partition("?")
    start, _, _ = address.rpartition("/")
    if user is not None:
        scheme, _, rest = start.partition("://")
        start = f"{scheme}://{user}@{rest.rpartition('@')[2]}"
    return f"{start}/{name}{mark}{options}"


@contextlib.contextmanager
def new_database() -> Iterator[str]:
    """Make an empty database; its name."""
    name = f"scratch_{uuid4().hex[:12]}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield name
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def start(*arguments: str, url: str, **environment: str) -> subprocess.Popen[str]:
    """Start a `manage.py` command on this database."""
    return subprocess.Popen(
        [sys.executable, ROOT / "manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def manage(*arguments: str, url: str, **environment: str) -> tuple[int, str, str]:
    """Run a `manage.py` command on this database; exit code, output, errors."""
    process = start(*arguments, url=url, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err
