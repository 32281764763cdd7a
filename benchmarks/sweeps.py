"""The leader's batches with a long history: how long each transaction takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.fill import ATTEMPTS, BATCH, FILL
from benchmarks.server import Server, cpu_seconds
from jobqueue.store import due_work, promotion, reclaims, sweeps
from jobqueue.store.batches import in_batch

ROWS, ROUNDS, WEEK = 5_000_000, 20, 7 * 86_400
# On top of the history: claims that have lapsed, jobs that are due, jobs past their deadline.
WORK = """
INSERT INTO jobqueue_job (task, state, run_at, expires_at, worker, lease_token, lease_expires_at,
    claimed_at, started_at)
SELECT 'shop.tasks.late', s.state, now() - interval '1 s',
    CASE WHEN s.state = 'READY' THEN now() - interval '1 s' END,
    CASE WHEN s.state = 'RUNNING' THEN gen_random_uuid() END,
    CASE WHEN s.state = 'RUNNING' THEN gen_random_uuid() END,
    CASE WHEN s.state = 'RUNNING' THEN now() - interval '1 s' END,
    CASE WHEN s.state = 'RUNNING' THEN now() END, CASE WHEN s.state = 'RUNNING' THEN now() END
FROM generate_series(1, %(each)s) n, (VALUES ('RUNNING'), ('SCHEDULED'), ('READY')) AS s(state)
"""


def show_sweeps(server: Server, scale: float) -> None:
    """Fill, then run each step's batches as the leader does."""
    rows = int(ROWS * scale)
    url = server.fresh()
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(1, rows + 1, BATCH):
            last = min(first + BATCH - 1, rows)
            connection.execute(FILL, {"first": first, "last": last, "rows": rows})
        connection.execute(ATTEMPTS, {})
        connection.execute(WORK, {"each": 500 * ROUNDS})
        connection.execute("VACUUM (ANALYZE) jobqueue_job")
        connection.execute("VACUUM (ANALYZE) jobqueue_attempt")
    asyncio.run(_run(url, rows))


async def _run(url: str, rows: int) -> None:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        for name, batch in STEPS.items():
            times, handled = [], 0
            cpu = cpu_seconds(connection.info.backend_pid)
            for _ in range(ROUNDS):
                start = time.perf_counter()
                handled += await in_batch(connection, 1.75, batch)
                times.append(1000 * (time.perf_counter() - start))
            cpu = cpu_seconds(connection.info.backend_pid) - cpu
            print(
                f"sweep {name:8} at {rows:,} rows: best {min(times):.1f} ms, median "
                f"{median(times):.1f}, worst {max(times):.1f}; {1000 * cpu / ROUNDS:.1f} ms of the "
                f"server's CPU; {handled // ROUNDS} rows a batch"
            )


async def _look(connection: Any) -> int:
    await due_work.find(connection, 86_400, {"SUCCEEDED": WEEK, "DEAD": 90 * 86_400})
    return 0


async def _promote(connection: Any) -> int:
    return len(await promotion.promote(connection, 500))


async def _reclaim(connection: Any) -> int:
    rows = await reclaims.lapsed(connection, 100)
    verdicts = [reclaims.Verdict(row.id, row.token, 5.0) for row in rows]
    return len(await reclaims.reclaim(connection, verdicts, f"leader {uuid4()}"))


async def _expire(connection: Any) -> int:
    ids = await sweeps.expirable(connection, 100, 86_400)
    return len(await sweeps.expire(connection, ids, 86_400, "leader"))


async def _prune(connection: Any) -> int:
    ids = await sweeps.prunable(connection, "SUCCEEDED", 3600, 500)
    return await sweeps.prune(connection, ids, "SUCCEEDED", 3600)


STEPS: dict[str, Callable[[Any], Coroutine[Any, Any, int]]] = {
    "look": _look,
    "promote": _promote,
    "reclaim": _reclaim,
    "expire": _expire,
    "prune": _prune,
}
