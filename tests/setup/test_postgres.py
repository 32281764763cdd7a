import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from project import postgres, settings

OWNER = """
import sys
from pathlib import Path
from project import postgres
with postgres.running(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder whose path is too long for a socket and has a space in it: made once, since
    what takes long is to initialise its data."""
    folder = tmp_path_factory.mktemp("home") / ("a long name " * 8).strip() / "state"
    yield folder
    postgres.Server(folder).remove()
    assert not folder.exists()


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """That folder, whose server does not run before the test nor after it."""
    monkeypatch.delenv("DATABASE_URL")
    yield home
    postgres.Server(home).stop()


@pytest.fixture
def owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the folder's server until its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=postgres.STATE.parent,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == postgres.address(folder)
        yield process


def started_at(url: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_postmaster_start_time()").fetchone()
    assert row is not None
    return row[0]


def test_the_owner_starts_a_durable_server_and_stops_it(folder: Path) -> None:
    assert postgres.address(folder) is None
    with postgres.running(folder) as url:
        assert postgres.address(folder) == url
        with psycopg.connect(url) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
    assert postgres.address(folder) is None
    assert not postgres.Server(folder).is_running()


def test_nobody_else_on_the_machine_can_reach_its_data_its_socket_or_the_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.running(folder):
        server = postgres.Server(folder)
        for place in (server.folder, server.home, server.data, server.sockets):
            assert place.stat().st_mode & 0o077 == 0, place
    monkeypatch.setattr(settings, "STATE", tmp_path)
    assert settings.secret_key() == settings.secret_key()
    assert (tmp_path / "secret-key").stat().st_mode & 0o077 == 0


def test_a_second_process_uses_the_owners_server_and_does_not_stop_it(
    folder: Path, owner: subprocess.Popen[str]
) -> None:
    with postgres.running(folder) as url:
        before = started_at(url)
    assert started_at(url) == before
    owner.communicate(timeout=30)
    assert owner.returncode == 0
    assert not postgres.Server(folder).is_running()


def test_the_server_of_a_killed_owner_is_taken_over_and_stopped(
    folder: Path, owner: subprocess.Popen[str]
) -> None:
    url = postgres.address(folder)
    assert url is not None
    before = started_at(url)
    owner.kill()
    owner.wait()
    with postgres.running(folder) as url:
        assert started_at(url) == before
    assert not postgres.Server(folder).is_running()


def test_a_killed_server_is_recovered_by_the_next_start(folder: Path) -> None:
    server = postgres.Server(folder)
    with postgres.running(folder) as url:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS fact")
        pid = int((server.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT fact FROM kept").fetchone() == (1,)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_keeps_the_address(folder: Path, mode: postgres.StopMode) -> None:
    with postgres.running(folder) as url:
        before = started_at(url)
        postgres.Server(folder).restart(mode)
        assert postgres.address(folder) == url
        assert started_at(url) != before


def test_nothing_starts_where_database_url_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://db.example/x")
    with postgres.running(tmp_path / "state") as url:
        assert url == "postgresql://db.example/x"
    assert not (tmp_path / "state").exists()
