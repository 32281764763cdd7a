"""This queue under load: enqueuers, backlogs, long transactions, memory, distance."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.measures import LEFT, LOAD, RUN_SECONDS, drain
from benchmarks.proxy import Proxy
from benchmarks.server import Server
from benchmarks.workers import OURS, client, environment, worker

COMMITTERS, EACH = 16, 500
LONG_SECONDS = 600
FINAL = """
WITH jobs AS (
    INSERT INTO jobqueue_job (task, args, state, attempts, started_at, finished_at)
    SELECT 'benchmarks.tasks.note', jsonb_build_array(g), 'SUCCEEDED', 1, now(), now()
    FROM generate_series(1, %(count)s) g
    RETURNING id
)
INSERT INTO jobqueue_attempt (token, job_id, number, outcome, started_at, finished_at)
SELECT gen_random_uuid(), id, 1, 'SUCCEEDED', now(), now() FROM jobs
"""
SCHEDULED = """
INSERT INTO jobqueue_job (task, args, state, run_at)
SELECT 'benchmarks.tasks.note', jsonb_build_array(g), 'SCHEDULED', now() + g * interval '1 s'
    + interval '1 day'
FROM generate_series(1, %(count)s) g
"""
ELSEWHERE = """
INSERT INTO jobqueue_job (task, args, queue, priority)
SELECT 'benchmarks.tasks.note', jsonb_build_array(g), 'queue-' || g %% 50, g %% 5
FROM generate_series(1, %(count)s) g
"""
WAITS = """
SELECT percentile_cont(%(shares)s::float8[]) WITHIN GROUP (
    ORDER BY EXTRACT(EPOCH FROM started_at - enqueued_at) * 1000
) FROM jobqueue_job WHERE task = 'benchmarks.tasks.nap'
"""


SIZES = """
SELECT name, pg_table_size(name::regclass), pg_indexes_size(name::regclass)
FROM (VALUES ('jobqueue_attempt'), ('jobqueue_job')) AS t(name) ORDER BY name
"""


def rates(server: Server) -> None:
    """Enqueue one by one compared with a bare INSERT, and many compared with COPY."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.client", "rates", "500"],
            env=environment(server.fresh(), Path(name) / "marks"),
            check=True,
            stdout=subprocess.PIPE,
        )
    found = json.loads(answer.stdout)
    for ours, bare in (("enqueue", "INSERT"), ("enqueue_many", "COPY")):
        share = found[ours] / found[bare]
        print(f"{ours}: {found[ours]:,.0f} jobs/s, {share:.2f} of {bare}'s {found[bare]:,.0f}")


def committers(server: Server) -> None:
    """Sixteen processes, each enqueues in transactions of its own; with and without wakes."""
    found: dict[str, list[float]] = {"": [], "benchmarks.quiet_settings": []}
    for turn in range(6):
        for module in sorted(found, reverse=bool(turn % 2)):
            found[module].append(_commit(server, module))
    told, quiet = (median(times) for times in found.values())
    print(
        f"{COMMITTERS} committers: {told:,.0f} jobs/s with wakes, {quiet:,.0f} without: "
        f"they lose {1 - told / quiet:.0%}"
    )


def _commit(server: Server, settings: str) -> float:
    url = server.fresh()
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as name,
        psycopg.connect(url, autocommit=True) as listener,
    ):
        listener.execute("LISTEN jobqueue")
        variables = environment(url, Path(name) / "marks")
        if settings:
            variables["DJANGO_SETTINGS_MODULE"] = settings
        crowd = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.client", "commit", str(EACH)],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(COMMITTERS)
        ]
        for one in crowd:
            assert one.stdout is not None
            one.stdout.readline()
        start = time.perf_counter()
        for one in crowd:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        for one in crowd:
            assert one.stdout is not None
            one.stdout.readline()
        took = time.perf_counter() - start
        for one in crowd:
            one.communicate()
    return COMMITTERS * EACH / took


def history(server: Server, scale: float) -> None:
    """The same drain on an empty table, and with final, scheduled and other ready jobs."""
    final, others = int(10_000_000 * scale), int(1_000_000 * scale)
    levels = (10, 50)
    empty = {level: [drain(server, OURS, level, 20_000) for _ in range(3)] for level in levels}
    place = server.fresh()
    for statement, count in ((FINAL, final), (SCHEDULED, others), (ELSEWHERE, others)):
        server.execute(statement, count=count)
    for level in levels:
        full = [drain(server, OURS, level, 20_000, place=place) for _ in range(3)]
        speed, served = (
            median(getattr(run, figure) for run in full)
            / median(getattr(run, figure) for run in empty[level])
            for figure in ("jobs_per_second", "server_us")
        )
        print(
            f"drain at {level} with {final:,} final, {others:,} scheduled and {others:,} ready "
            f"jobs elsewhere: {speed:.2f} of the empty table's; server CPU {served:.2f}"
        )


def held(server: Server, scale: float) -> None:
    """A drain while another transaction is open for the whole run, tenth by tenth."""
    count = int(200_000 * max(scale, 0.3))
    url = server.fresh()
    server.execute(LOAD, count=count, task="benchmarks.tasks.note")
    server.execute("VACUUM ANALYZE")
    with psycopg.connect(url) as forgotten:
        forgotten.execute("SELECT count(*), pg_current_xact_id() FROM jobqueue_queue")
        with worker(OURS, url, 50) as run:
            run.wait_for(1, RUN_SECONDS)
            tenths, start = [], time.perf_counter()
            for tenth in range(1, 11):
                run.wait_for(count * tenth // 10, LONG_SECONDS)
                tenths.append(count / 10 / (time.perf_counter() - start))
                start = time.perf_counter()
    print(
        f"drain at 50 of {count:,} jobs during an open transaction: the last tenth "
        f"{tenths[-1] / tenths[0]:.2f} of the first ({tenths[0]:,.0f} jobs/s)"
    )


def memory(server: Server, scale: float) -> None:
    """Resident memory at concurrency 50, early and late; and what the tables take afterwards."""
    count = int(1_000_000 * scale)
    url = server.fresh()
    server.execute(LOAD, count=count, task="benchmarks.tasks.note")
    server.execute("VACUUM ANALYZE")
    with worker(OURS, url, 50) as run:
        run.wait_for(count // 10, LONG_SECONDS)
        early = run.resident_mib()
        run.wait_for(count, max(LONG_SECONDS, count // 1_000))
        print(f"memory at 50: {early:.0f} MiB after {count // 10:,} jobs, ", end="")
        print(f"{run.resident_mib():.0f} MiB after {count:,}")
        while server.execute(LEFT)[0][0]:
            time.sleep(0.01)
    grown = server.execute(SIZES)
    server.execute("VACUUM FULL jobqueue_job")
    server.execute("VACUUM FULL jobqueue_attempt")
    for (name, *sizes), (_, *least) in zip(grown, server.execute(SIZES), strict=True):
        table, indexes = (size / small for size, small in zip(sizes, least, strict=True))
        print(f"{name} after that: table {table:.2f}, indexes {indexes:.2f} of the least size")


def under_load(server: Server) -> None:
    """From enqueue to start, with 1,000 jobs of 10 ms arriving each second."""
    url, rate, seconds = server.fresh(), 500, 10
    with worker(OURS, url, 50) as run:
        client(OURS, url, "one", 1, 0)
        run.wait_for(1, RUN_SECONDS)  # the worker is up before the first arrival
        feeders = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.client", "feed", str(rate * seconds), str(rate)],
                env=environment(url, run.marks),
            )
            for _ in range(2)
        ]
        for feeder in feeders:
            feeder.wait(LONG_SECONDS)
        run.wait_for(1 + 2 * rate * seconds, RUN_SECONDS)
    usual, late = server.execute(WAITS, shares=[0.5, 0.99])[0][0]
    print(f"1,000 arrivals a second of 10 ms: wait p50 {usual:.1f} ms, p99 {late:.1f} ms")


def remote(server: Server) -> None:
    """A drain with 2 ms more of round trip, and without, both through the same proxy."""
    found = {}
    for delay in (0.0, 0.002):
        proxies: list[Proxy] = []

        def through(url: str, delay: float = delay, proxies: list[Proxy] = proxies) -> str:
            proxies.append(Proxy(url, delay))
            return proxies[0].url

        found[delay] = drain(server, OURS, 50, 20_000, through=through).jobs_per_second
        proxies[0].close()
    share = found[0.002] / found[0.0]
    print(f"drain at 50 from 2 ms away: {found[0.002]:,.0f} jobs/s, {share:.2f} of the near one")
