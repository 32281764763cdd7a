import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.children import wait_until

ROOT = Path(__file__).resolve().parents[2]


def manage(*arguments: str, database_url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        env={**os.environ, "DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite:///x.db", "DATABASE_URL names a sqlite database, but jobqueue needs PostgreSQL"),
        ("mysql://me:hush@h/x", "DATABASE_URL names a mysql database, but jobqueue needs"),
        ("me:hush@h/x", "DATABASE_URL names no database server, but jobqueue needs PostgreSQL"),
        ("postgresql://me:hush@h:hush/x", "DATABASE_URL cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["migrate", "runworker"])
def test_a_bad_database_url_is_one_line_without_the_password(
    command: str, url: str, complaint: str
) -> None:
    refused = manage(command, database_url=url)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert complaint in refused.stderr
    assert "hush" not in refused.stderr


def test_an_unreachable_database_is_one_line() -> None:
    refused = manage("migrate", database_url="postgresql://me:hush@127.0.0.1:1/x")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "the database failed: " in refused.stderr
    assert "hush" not in refused.stderr


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The URL of a new database alongside the tests' own."""
    server = os.environ["DATABASE_URL"]
    name = f"demo_{os.getpid()}"
    address, mark, options = server.partition("?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield address.rpartition("/")[0] + f"/{name}{mark}{options}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def demo(empty_database: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A running demo whose page can be reached; what it prints goes to the file `output`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (tmp_path / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, ROOT / "scripts" / "demo.py"],
            env={**os.environ, "DATABASE_URL": empty_database, "PORT": str(port)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/", process), seconds=40)
            # The page answers before the worker's process has taken up its own command.
            wait_until(lambda: len(children(process)) == 3, seconds=40)
            yield process
        finally:
            process.terminate()
            process.wait(timeout=40)


def answers(url: str, process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None
    try:
        return bool(urllib.request.urlopen(url, timeout=5).status == 200)
    except OSError:
        return False


def children(process: subprocess.Popen[str]) -> dict[str, int]:
    """Return the ids of the demo's children by what they are, once they have become that."""
    # -ww: COLUMNS in the environment would cut the lines before the command's name.
    listing = subprocess.check_output(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], text=True)
    rows = (line.split(maxsplit=2) for line in listing.splitlines())
    commands = {int(pid): words for pid, parent, words in rows if int(parent) == process.pid}
    roles = ("runserver", "runworker", "guard")
    return {role: pid for pid, words in commands.items() for role in roles if role in words}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_signal_stops_the_demo_and_no_process_remains(
    demo: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    before = children(demo)
    os.killpg(demo.pid, number)
    assert demo.wait(timeout=40) == 0
    assert not any(is_alive(pid) for pid in before.values())
    said = (tmp_path / "output").read_text()
    assert "Administrator: admin, password " in said
    assert "Stopping: running jobs may finish." in said


@pytest.mark.timeout(120)
def test_a_child_that_dies_ends_the_demo_with_a_message(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    before = children(demo)
    os.kill(before["runworker"], signal.SIGKILL)
    assert demo.wait(timeout=40) == 1
    assert not any(is_alive(pid) for pid in before.values())
    assert "the worker ended unexpectedly (-9)" in (tmp_path / "output").read_text()


@pytest.mark.timeout(120)
def test_the_children_of_a_killed_demo_end_too(demo: subprocess.Popen[str]) -> None:
    before = children(demo)
    demo.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in before.values()), seconds=40)
