"""Every measurement, one after another: `python -m benchmarks.full [NAME …]`, see NAMES.

Uses DATABASE_URL's server, or an embedded one. Each is bounded in jobs and in time. SCALE in the
environment multiplies the sizes of `history`, `held`, `memory` and `sweeps` (default 0.1: a tenth
of the full sizes).
"""

import os
import sys
from collections.abc import Callable
from statistics import median

from benchmarks import quick
from benchmarks.load import committers, held, history, memory, rates, remote, under_load
from benchmarks.measures import drain
from benchmarks.newer import show_newer
from benchmarks.server import Server, running
from benchmarks.sweeps import show_sweeps
from benchmarks.workers import BARE, OURS

SCALE = float(os.environ.get("SCALE", "0.1"))
REPEATS = 3


def drains(server: Server) -> None:
    """No-op coroutines; the bare driver for comparison; plain functions."""
    for concurrency in (10, 50, 200):
        found: dict[str, list[float]] = {}
        for _ in range(REPEATS):
            for name, kind, task in (
                (OURS, OURS, "note"),
                (BARE, BARE, "note"),
                ("sync", OURS, "note_sync"),
            ):
                figures = drain(server, kind, concurrency, 20_000, task=f"benchmarks.tasks.{task}")
                found.setdefault(name, []).append(figures.jobs_per_second)
        ours, beside = median(found[OURS]), median(found[BARE])
        print(
            f"drain at {concurrency}: {ours:,.0f} jobs/s, {ours / beside:.2f} of the bare driver's "
            f"{beside:,.0f}; plain functions {median(found['sync']) / ours:.2f} of it"
        )


def processes(server: Server) -> None:
    """One, two and four processes of one supervisor; twenty small workers."""
    for count, concurrency in ((1, 10), (2, 10), (4, 10), (20, 5)):
        many = [f"--processes={count}"] if count > 1 else []
        figures = drain(server, OURS, concurrency, 40_000, *many)
        print(
            f"{count} processes at {concurrency}: {figures.jobs_per_second:,.0f} jobs/s, "
            f"{figures.lock_waits} lock waits seen"
        )


NAMES: dict[str, Callable[[Server], None]] = {
    "drain": drains,
    "processes": processes,
    "pickup": quick.show_pickup,
    "idle": quick.show_idle,
    "enqueue": rates,
    "committers": committers,
    "history": lambda server: history(server, SCALE),
    "held": lambda server: held(server, SCALE),
    "sweeps": lambda server: show_sweeps(server, SCALE),
    "newer": show_newer,
    "memory": lambda server: memory(server, SCALE),
    "load": under_load,
    "remote": remote,
}


def main(names: list[str]) -> None:
    with running() as server:
        for name in names:
            NAMES[name](server)


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(NAMES)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}")
    main(sys.argv[1:] or list(NAMES))
