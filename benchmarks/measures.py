"""The measurements. Each makes one run on a fresh database and returns its figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import bare, marks
from benchmarks.proxy import Proxy
from benchmarks.server import Server
from benchmarks.workers import BARE, client, percentiles, worker

RUN_SECONDS = 60
LOAD = """
INSERT INTO jobqueue_job (task, args)
SELECT %(task)s, jsonb_build_array(g) FROM generate_series(1, %(count)s) g
"""
# Only what this run has loaded. Each count by its own partial index: together they would read the
# whole table, and with millions of rows the measurement would measure itself.
LEFT = """
SELECT (SELECT count(*) FROM jobqueue_job WHERE state = 'READY' AND queue = 'default')
    + (SELECT count(*) FROM jobqueue_job WHERE state = 'RUNNING')
"""
LOCK_WAITS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@dataclass(frozen=True)
class Drain:
    """How fast waiting jobs were finished, and what each cost in microseconds of CPU."""

    jobs_per_second: float
    worker_us: float
    server_us: float
    lock_waits: int = 0  # sampled while it ran


def drain(
    server: Server,
    kind: str,
    concurrency: int,
    count: int,
    *options: str,
    task: str = "benchmarks.tasks.note",
    place: str | None = None,
    through: Callable[[str], str] = lambda url: url,
) -> Drain:
    """No-op jobs that wait when the worker starts, from the first handler until the database says
    that all are done. On a fresh database, unless there is a place that is not."""
    url = place or server.fresh()
    if kind == BARE:
        server.execute(bare.LOAD, count=count)
    else:
        server.execute(LOAD, count=count, task=task)
    server.execute("VACUUM ANALYZE")
    left = bare.LEFT if kind == BARE else LEFT
    lock_waits = 0
    with worker(kind, through(url), concurrency, *options) as run:
        run.wait_for(1, RUN_SECONDS)
        used = run.cpu_seconds()
        for share in range(1, 11):
            run.wait_for(count * share // 10, RUN_SECONDS)
            lock_waits += server.execute(LOCK_WAITS)[0][0]
        while server.execute(left)[0][0]:
            time.sleep(0.01)
        end = time.time()
        used, served = run.cpu_seconds() - used, server.cpu_seconds()
        first = min(moment for _, moment in marks.read(run.marks)) / 1e9
    return Drain(count / (end - first), used / count * 1e6, served / count * 1e6, lock_waits)


def pickup(server: Server, kind: str, count: int, gap: float = 0.05) -> tuple[float, float]:
    """Milliseconds from the return of an enqueue's commit to its handler's first line, with an idle
    worker: median and 99th percentile."""
    url = server.fresh()
    with worker(kind, url, 10) as run:
        client(kind, url, "enqueue" if kind == BARE else "one", 1, 0)
        run.wait_for(1, RUN_SECONDS)
        time.sleep(1)
        sent = client(kind, url, "enqueue" if kind == BARE else "one", count, gap)
        run.wait_for(count + 1, RUN_SECONDS)
        got = dict(marks.read(run.marks)[1:])
    return percentiles([(got[number] - sent[number]) / 1e6 for number in sent])


@dataclass(frozen=True)
class Idle:
    """What an idle worker costs."""

    statements: float  # per second
    worker_ms: float  # of CPU per second
    resident_mib: float


def idle(server: Server, kind: str, seconds: float, *options: str) -> Idle:
    """An idle worker after one job, measured from 5 s later on."""
    url = server.fresh()
    proxy = Proxy(url)
    try:
        with worker(kind, proxy.url, 10, *options) as run:
            client(kind, url, "enqueue" if kind == BARE else "one", 1, 0)
            run.wait_for(1, RUN_SECONDS)
            time.sleep(5)
            statements, used = proxy.statements, run.cpu_seconds()
            time.sleep(seconds)
            return Idle(
                (proxy.statements - statements) / seconds,
                (run.cpu_seconds() - used) / seconds * 1000,
                run.resident_mib(),
            )
    finally:
        proxy.close()
