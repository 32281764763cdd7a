"""The bare driver: the smallest worker that claims and completes in batches. The yardstick.

No heartbeat, no retry, no recovery, no history, no logging: what psycopg and one event loop can do.
`python -m benchmarks.bare worker CONCURRENCY | enqueue COUNT GAP_SECONDS`
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from benchmarks.marks import mark

POLL_SECONDS = 5
SCHEMA = """
CREATE TABLE bare (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state smallint NOT NULL DEFAULT 0,
    queue text NOT NULL DEFAULT 'default',
    priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempt smallint NOT NULL DEFAULT 0,
    claimed_at timestamptz,
    finished_at timestamptz,
    args jsonb NOT NULL
);
CREATE INDEX bare_ready ON bare (queue, priority, id) WHERE state = 0
"""
LOAD = """
INSERT INTO bare (args) SELECT jsonb_build_array(g) FROM generate_series(1, %(count)s) g
"""
LEFT = "SELECT count(*) FROM bare WHERE state <> 2"
STEP = """
WITH done AS (
    UPDATE bare SET state = 2, finished_at = now() WHERE id = ANY(%(ids)s) AND state = 1
)
UPDATE bare SET state = 1, attempt = attempt + 1, claimed_at = now()
WHERE id IN (
    SELECT id FROM bare
    WHERE state = 0 AND queue = 'default' AND run_at <= now()
    ORDER BY priority, id LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
RETURNING id, args, attempt
"""
INSERT = "INSERT INTO bare (args) VALUES (%(args)s) RETURNING id"


async def work(concurrency: int) -> None:
    url = os.environ["DATABASE_URL"]
    connection = await AsyncConnection.connect(url, autocommit=True, prepare_threshold=1)
    listener = await AsyncConnection.connect(url, autocommit=True)
    await listener.execute("LISTEN bare")
    wake, stop = asyncio.Event(), asyncio.Event()
    done: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    def leave() -> None:
        stop.set()
        wake.set()

    async def listen() -> None:
        async for _ in listener.notifies():
            wake.set()

    async def run(id: int, args: list[Any]) -> None:
        mark(*args)
        done.append(id)
        wake.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
    side = asyncio.create_task(listen())
    more = True
    while not (stop.is_set() and not tasks and not done):
        if not more:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), POLL_SECONDS)
        wake.clear()
        await asyncio.sleep(0)
        ids, limit = done[:], 0 if stop.is_set() else concurrency - len(tasks)
        del done[: len(ids)]
        cursor = await connection.execute(STEP, {"ids": ids, "limit": limit})
        rows = await cursor.fetchall()
        for id, args, _ in rows:
            tasks.add(task := asyncio.create_task(run(id, args)))
            task.add_done_callback(tasks.discard)
        more = len(rows) == limit > 0 and len(tasks) < concurrency
    side.cancel()


def enqueue(count: int, gap: float) -> None:
    """Insert one by one, and mark the moment at which each commit has returned."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.prepare_threshold = 1
        for number in range(count):
            connection.execute(INSERT, {"args": Jsonb([number])})
            mark(number)
            connection.execute("NOTIFY bare")
            time.sleep(gap)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", concurrency]:
            asyncio.run(work(int(concurrency)))
        case ["enqueue", count, gap]:
            enqueue(int(count), float(gap))
