"""Old rows beside the jobs: workers long gone, fired ticks, the trail of queues."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

Connection = AsyncConnection[Any]

# A row stays some days after the last word of its process, so that a deploy can be read afterwards.
FORGET_WORKERS = """
DELETE FROM jobqueue_worker WHERE id = ANY(ARRAY(
    SELECT id FROM jobqueue_worker
    WHERE last_seen_at <= now() - %(age)s * interval '1 second' AND id <> %(me)s
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
"""


async def forget_workers(connection: Connection, me: UUID, age: float, limit: int) -> int:
    """Delete the rows of processes silent for `age` seconds; never one's own."""
    cursor = await connection.execute(FORGET_WORKERS, {"me": me, "age": age, "limit": limit})
    return cursor.rowcount


# By schedule, because the key that makes a tick unique starts with it.
FORGET_TICKS = """
DELETE FROM jobqueue_scheduletick WHERE id = ANY(ARRAY(
    SELECT old.id FROM jobqueue_schedule s CROSS JOIN LATERAL (
        SELECT t.id FROM jobqueue_scheduletick t
        WHERE t.schedule_id = s.id AND t.tick_at <= now() - %(age)s * interval '1 second'
        ORDER BY t.tick_at LIMIT %(limit)s
    ) AS old
    LIMIT %(limit)s
))
"""


async def forget_ticks(connection: Connection, age: float, limit: int) -> int:
    """Delete ticks older than `age` seconds."""
    cursor = await connection.execute(FORGET_TICKS, {"age": age, "limit": limit})
    return cursor.rowcount


FORGET_EVENTS = """
DELETE FROM jobqueue_jobevent WHERE id = ANY(ARRAY(
    SELECT id FROM jobqueue_jobevent
    WHERE at <= now() - %(age)s * interval '1 second'
    ORDER BY at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
"""


async def forget_events(connection: Connection, age: float, limit: int) -> int:
    """Delete events older than `age` seconds; those of a job go with the job."""
    cursor = await connection.execute(FORGET_EVENTS, {"age": age, "limit": limit})
    return cursor.rowcount
