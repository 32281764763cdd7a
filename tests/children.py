"""The site's own processes, on the tests' database: started for one test, and ended with it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connection

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 15


def wait_until(fact: Callable[[], Any], seconds: float = 20, every: float = 0.02) -> Any:
    """Poll until `fact()` is true, and return it: for tests without a loop of their own."""
    end = time.monotonic() + seconds
    while not (value := fact()):
        if time.monotonic() > end:
            raise AssertionError(f"not so within {seconds} s")
        time.sleep(every)
    return value


def database_url() -> str:
    """Return the tests' own database as DATABASE_URL names one."""
    config = connection.settings_dict
    user, password, host = (
        quote(str(config[key] or ""), "") for key in ("USER", "PASSWORD", "HOST")
    )
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    name = quote(str(config["NAME"]))
    if str(config["HOST"]).startswith("/"):  # a socket's folder
        query = urlencode({"host": config["HOST"], "port": config["PORT"] or 5432})
        return f"postgresql://{login}/{name}?{query}"
    return f"postgresql://{login}{host}:{config['PORT'] or 5432}/{name}"


class Children:
    """Workers and a web server; what they say goes to files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outbox = folder / "outbox"
        self.environment = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "OUTBOX": str(self.outbox),
            "DJANGO_SETTINGS_MODULE": "project.settings",
        }
        self.before: list[str] = []  # words in front of the command
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Shown only for a test that failed; a fixture's teardown does not know whether it did.
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-8_000:]}")

    def manage(self, *arguments: str) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        with (self.folder / f"{number}-{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [*self.before, sys.executable, ROOT / "manage.py", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        return self.manage("runworker", *options)

    def web(self) -> str:
        """Start the site; return its address once it answers."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = self.manage("runserver", "--noreload", f"127.0.0.1:{port}")

        def answers() -> bool:
            assert process.poll() is None, "the web server has ended"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                return False
            return True

        wait_until(answers)
        return f"http://127.0.0.1:{port}"

    def log(self, command: str) -> list[str]:
        """Return the lines that the processes of this command have written."""
        files = sorted(self.folder.glob(f"*-{command}.log"))
        return [line for file in files for line in file.read_text().splitlines()]

    def letters(self) -> list[str]:
        """Return what was written to the outbox, oldest first."""
        return [file.read_text() for file in sorted(self.outbox.glob("*.log"))]
