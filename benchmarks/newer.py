"""Jobs that this code leaves alone, in front of ten that it takes: how long a claim is."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from uuid import uuid4

import psycopg

from benchmarks.server import Server
from jobqueue.store import claims
from jobqueue.versions import UNDERSTANDS
from jobqueue.worker.claiming.claim_round import new_tokens

AHEAD, PLAIN, ROUNDS = 100_000, 10, 50
ADD = """
INSERT INTO jobqueue_job (task, needs, priority)
SELECT 'benchmarks.tasks.note', %(needs)s, %(priority)s FROM generate_series(1, %(count)s)
"""


def show_newer(server: Server) -> None:
    """Ten plain jobs alone, then behind the others."""
    url = server.fresh()
    print(f"claim of {PLAIN} plain jobs: {asyncio.run(_time(url)):.2f} ms")
    ahead = {"needs": UNDERSTANDS + 1, "priority": 1, "count": AHEAD}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ADD, ahead)
        connection.execute("VACUUM (ANALYZE) jobqueue_job")
    print(f"claim behind {AHEAD:,} newer ones: {asyncio.run(_time(url)):.2f} ms")


async def _time(url: str) -> float:
    """Return the median of the claims, each rolled back."""
    times = []
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        await connection.execute("DELETE FROM jobqueue_job WHERE needs <= %s", [UNDERSTANDS])
        plain = {"needs": UNDERSTANDS, "priority": 0, "count": PLAIN}
        await connection.execute(ADD, plain)
        for _ in range(ROUNDS):
            async with connection.transaction(force_rollback=True):
                start = time.perf_counter()
                rows = await claims.claim(connection, "default", uuid4(), new_tokens(20), 30.0)
                times.append(1000 * (time.perf_counter() - start))
                assert len(rows) == PLAIN
    return median(times)
