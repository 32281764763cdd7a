"""The processes that are measured."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from benchmarks import marks
from benchmarks.server import cpu_seconds

OURS, BARE = "jobqueue", "bare"
START_SECONDS, STOP_SECONDS = 30, 20


@dataclass
class Run:
    """One worker's run, and what it reported."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    marks: Path = field(init=False)

    def __post_init__(self) -> None:
        self.marks = self.folder / "marks"

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until this many handlers have run."""
        end = time.monotonic() + seconds
        while marks.count(self.marks) < count:
            if time.monotonic() > end or (self.process and self.process.poll() is not None):
                output = (self.folder / "output").read_text()[-2000:]
                raise RuntimeError(f"{marks.count(self.marks)} of {count} jobs ran.\n{output}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def resident_mib(self) -> float:
        """Return the current resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextlib.contextmanager
def worker(kind: str, url: str, concurrency: int, *options: str) -> Iterator[Run]:
    """Run one worker process until the end of the block, its log written to a file."""
    if kind == BARE:
        command = [sys.executable, "-m", "benchmarks.bare", "worker", str(concurrency)]
    else:
        command = [sys.executable, "manage.py", "runworker", "--queues=default"]
        command += [f"--concurrency={concurrency}", *options]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        run = Run(Path(name))
        with (run.folder / "output").open("wb") as output:
            run.process = subprocess.Popen(
                command, env=environment(url, run.marks), stdout=output, stderr=output
            )
        try:
            yield run
        finally:
            _stop(run.process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def client(kind: str, url: str, *words: object) -> dict[int, int]:
    """Run an enqueuing process to its end; return when each job's commit had returned."""
    module = "benchmarks.bare" if kind == BARE else "benchmarks.client"
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        file = Path(name) / "sent"
        command = [sys.executable, "-m", module, *map(str, words)]
        subprocess.run(command, env=environment(url, file), check=True)
        return dict(marks.read(file))


def environment(url: str, file: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "DEBUG": "false",
        marks.VARIABLE: str(file),
    }


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return median(values), quantiles(values, n=100)[98] if len(values) > 1 else values[0]
