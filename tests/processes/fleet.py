"""Worker processes with a test's own settings, and what the tables and the logs say of them."""

import json
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from django.db import connection

from jobqueue.models import Attempt, Job, Worker
from tests.children import Children, wait_until

# A beat of 0.2 s and a lease that outlives two failed ones; graces that a test can wait for.
SHORT = {
    "HEARTBEAT_SECONDS": 0.2,
    "LEASE_SECONDS": 3,
    "DRAIN_SECONDS": 2,
    "CANCEL_SECONDS": 0.5,
    "POLL_SECONDS": 0.3,
    "LEADER_LEASE_SECONDS": 2,
    "BACKOFF_BASE_SECONDS": 0.1,
}
# What a busy machine may add to any promise about time.
SLACK_SECONDS = 4.0


class Fleet(Children):
    """Children whose handlers are those of `tests.processes.tempers`."""

    settings: dict[str, Any] = SHORT

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.effects_file = folder / "effects"
        self.effects_file.touch()
        self.environment["EFFECTS"] = str(self.effects_file)
        self.environment["DJANGO_SETTINGS_MODULE"] = "tests.processes.settings"

    def start(self, *options: str, wait: bool = True, **settings: Any) -> "Running":
        """Start a worker; settings as in JOBQUEUE. Returns once it serves."""
        self.environment["JOBQUEUE_SETTINGS"] = json.dumps({**self.settings, **settings})
        number = len(self.processes)
        worker = Running(self.worker(*options), self.folder / f"{number}-runworker.log")
        if wait:
            worker.wait_for("worker_started")
        return worker

    def effects(self) -> list[tuple[int, int, str]]:
        """What handlers noted: (job, attempt, word), oldest first."""
        lines = [line.split() for line in self.effects_file.read_text().splitlines()]
        return [(int(job), int(attempt), word) for job, attempt, word, _ in lines]

    def count(self, word: str) -> int:
        return sum(1 for _, _, said in self.effects() if said == word)


class Running:
    """One worker process, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log, self.pid = process, log, process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log's events, of this name; lines that are none (stacks) are left out."""
        found = []
        for line in self.text().splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue  # half a line yet
        return [event for event in found if name is None or event["event"] == name]

    def wait_for(self, name: str, seconds: float = 40, **facts: Any) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            for event in self.events(name):
                if facts.items() <= event.items():
                    return event
            assert self.process.poll() is None, f"ended with {self.process.poll()}: {self.text()}"
            return None

        return wait_until(look, seconds)

    def ended(self, seconds: float) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 30) -> int:
        self.send(number)
        return self.ended(seconds)

    @property
    def report(self) -> dict[str, Any]:
        """The last line."""
        last = self.events()[-1]
        assert last["event"] == "worker_stopped", self.text()[-3000:]
        return last

    def row(self) -> Worker:
        return Worker.objects.get(pid=self.pid, phase__gt="")

    def phases(self) -> list[str]:
        return [event["phase"] for event in self.events("shutdown_phase")]


def states() -> Counter[str]:
    return Counter(Job.objects.values_list("state", flat=True))


def outcomes() -> Counter[str]:
    return Counter(Attempt.objects.values_list("outcome", flat=True))


def adds_up(report: dict[str, Any]) -> bool:
    counts = ("completed", "interrupted", "returned", "unrecorded")
    return sum(report[name] for name in counts) == report["claimed"]


def seconds_since(moment: float) -> float:
    return time.monotonic() - moment


def make_effect_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS test_effect (job bigint, pid int)")
        cursor.execute("TRUNCATE test_effect")


def rows_of_effects() -> Counter[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT job FROM test_effect")
        return Counter(job for (job,) in cursor.fetchall())
