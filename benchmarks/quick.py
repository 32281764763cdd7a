"""The three figures to watch, compared with the bare driver's. `make bench`, about a minute.

`python -m benchmarks.quick [REPEATS]`; on DATABASE_URL's server, or an embedded one.
"""

import sys
from statistics import median

from benchmarks.measures import drain, idle, pickup
from benchmarks.server import Server, running
from benchmarks.workers import BARE, OURS

JOBS, CONCURRENCY = 10_000, 10


def main(repeats: int) -> None:
    with running() as server:
        show_drain(server, repeats)
        show_pickup(server)
        show_idle(server)


def show_drain(server: Server, repeats: int) -> None:
    rates: dict[str, list[float]] = {OURS: [], BARE: []}
    for _ in range(repeats):
        for kind in (OURS, BARE):
            figures = drain(server, kind, CONCURRENCY, JOBS)
            rates[kind].append(figures.jobs_per_second)
            print(
                f"drain {CONCURRENCY:3}  {kind:9}{figures.jobs_per_second:7,.0f} jobs/s"
                f"  CPU a job: worker {figures.worker_us:.0f} µs, server {figures.server_us:.0f} µs"
            )
    print(
        f"drain {CONCURRENCY:3}  {median(rates[OURS]) / median(rates[BARE]):.2f} of the bare driver"
    )


def show_pickup(server: Server) -> None:
    found = {}
    for kind in (OURS, BARE):
        found[kind] = pickup(server, kind, 100)
        print("pickup     {:9}p50 {:.2f} ms, p99 {:.2f} ms".format(kind, *found[kind]))
    print(f"pickup     {found[OURS][0] / found[BARE][0]:.2f} times the bare driver's median")


def show_idle(server: Server) -> None:
    for kind, name, options in (
        (OURS, "leader", ()),
        (OURS, "follower", ("--no-leader",)),
        (BARE, "bare", ()),
    ):
        figures = idle(server, kind, 20, *options)
        print(
            f"idle       {name:9}{figures.statements:.2f} statements/s, "
            f"CPU {figures.worker_ms:.1f} ms/s, {figures.resident_mib:.0f} MiB"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
