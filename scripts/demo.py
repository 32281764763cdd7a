"""Run the example site: database, web server and worker, until Ctrl-C."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"

from project import postgres  # noqa: E402  # the path comes first

MANAGE = [sys.executable, str(ROOT / "manage.py")]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    for number in STOP_SIGNALS:
        signal.signal(number, _leave)
    try:
        port = choose_port(os.environ.get("PORT"))
        with postgres.running():
            prepare()
            return Children(port).run()
    except (postgres.PostgresError, DemoError) as error:
        sys.exit(f"demo: {error}")


class DemoError(Exception):
    """The demo cannot start."""


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def choose_port(wanted: str | None) -> int:
    """Return PORT, which must be free if it is set, or the first free port from 8000 on."""
    if wanted and not (wanted.isdecimal() and 0 < int(wanted) < 65536):
        raise DemoError(f"PORT={wanted} is not a port: a number from 1 to 65535 is needed.")
    candidates = [int(wanted)] if wanted else range(8000, 8100)
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    taken = f"Port {wanted} is" if wanted else "The ports 8000 to 8099 are all"
    raise DemoError(f"{taken} not free on 127.0.0.1: choose another one with PORT=.")


def prepare() -> None:
    """Migrate the database, and add an administrator and, the first time, some jobs."""
    manage("migrate", "--verbosity", "0")
    import django

    django.setup()
    from django.core.management import get_commands
    from django.db import connections

    is_first_start = make_administrator()
    connections.close_all()
    if is_first_start and "seed_demo" in get_commands():
        manage("seed_demo")


def make_administrator() -> bool:
    """Make an administrator where there is none, and show the password this once."""
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    known = users.filter(is_superuser=True).order_by("pk").first()
    if known is not None:
        name = known.get_username()
        print(f"Administrator: {name}; reset the password with")
        print(f"  .venv/bin/python manage.py changepassword {name}")
        return False
    password = secrets.token_urlsafe(9)
    users.create_superuser("admin", "admin@example.com", password)
    print(f"Administrator: admin, password {password} (shown only now)")
    return True


def manage(*arguments: str) -> None:
    if subprocess.run([*MANAGE, *arguments], check=False).returncode != 0:  # noqa: S603
        raise DemoError(f"`manage.py {arguments[0]}` failed: see above.")


class Children:
    """The web server and the worker, each in a session of its own.

    So a Ctrl-C, which goes to the whole foreground group, reaches them only through us, and the
    worker counts exactly the signals that the user sent.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.guards: list[subprocess.Popen[bytes]] = []
        self.signals_seen = 0
        self.signals_sent = 0

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, self._count)
        try:
            self._start("web server", "runserver", "--noreload", f"127.0.0.1:{self.port}")
            self._start("worker", "runworker")
            self._start_guard()
            self._announce()
            return self._wait()
        finally:
            for process in [*self.processes.values(), *self.guards]:
                process.kill()
                process.wait()

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.signals_seen += 1

    def _start(self, name: str, *arguments: str) -> None:
        self.processes[name] = subprocess.Popen(  # noqa: S603
            [*MANAGE, *arguments], start_new_session=True, stdin=subprocess.DEVNULL
        )

    def _start_guard(self) -> None:
        """Stop both even if we are killed: the guard's stdin ends with us."""
        pids = [str(process.pid) for process in self.processes.values()]
        command = ["/bin/sh", "-c", 'read -r _; kill -s TERM "$@"', "guard", *pids]
        self.guards.append(
            subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE)  # noqa: S603
        )

    def _announce(self) -> None:
        """Print the addresses once the page can be reached, so that they come last."""
        web = self.processes["web server"]
        while not self.signals_seen and web.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            time.sleep(0.1)
        if web.poll() is None:
            page = f"http://127.0.0.1:{self.port}/"
            print(f"\n  Page:      {page}\n  Dashboard: {page}admin/jobqueue/dashboard/")
            print("\n  Ctrl-C stops everything.\n", flush=True)

    def _wait(self) -> int:
        """Pass on the stop signals until both have ended; return whether one ended by itself."""
        failed: str | None = None
        while living := [p for p in self.processes.values() if p.poll() is None]:
            if failed is None and not self.signals_seen and len(living) < len(self.processes):
                failed = next(n for n, p in self.processes.items() if p.returncode is not None)
                code = self.processes[failed].returncode
                print(f"demo: the {failed} ended unexpectedly ({code}); stopping.", file=sys.stderr)
                self.signals_seen += 1
            if self.signals_sent < self.signals_seen:
                self.signals_sent += 1
                for process in living:
                    process.terminate()
                self._say_what_follows()
            time.sleep(0.05)
        return 1 if failed else 0

    def _say_what_follows(self) -> None:
        match self.signals_sent:
            case 1:
                hint = "running jobs may finish. Ctrl-C again gives them back to the queue instead."
            case 2:
                hint = "running jobs go back to the queue."
            case _:
                return
        print(f"\n  Stopping: {hint}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
