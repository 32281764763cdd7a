"""Old rows besides the jobs: workers long gone, fired ticks, events."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import scalar_row

from jobqueue.states import NOTES

Connection = AsyncConnection[Any]

# A row stays some days after its process's last beat, so that a deploy can be examined later.
FORGET_WORKERS = """
DELETE FROM jobqueue_worker WHERE id = ANY(ARRAY(
    SELECT id FROM jobqueue_worker
    WHERE last_seen_at <= now() - %(age)s * interval '1 second' AND id <> %(me)s
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
"""


async def forget_workers(connection: Connection, me: UUID, age: float, limit: int) -> int:
    """Delete the rows of processes silent for `age` seconds, but never this one's."""
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


# The one rule for events, whoever deleted the job. A pass goes through all of them by id, because
# no index finds an event whose job is gone. The probe is a scalar subquery, because the planner may
# turn an EXISTS into a scan of all jobs.
FORGET_EVENTS = """
WITH seen AS MATERIALIZED (
    SELECT id, job, kind, at FROM jobqueue_jobevent
    WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
), forgotten AS (
    DELETE FROM jobqueue_jobevent WHERE id = ANY(ARRAY(
        SELECT seen.id FROM seen
        WHERE CASE WHEN seen.job IS NOT NULL AND seen.kind = ANY(%(notes)s::text[])
            THEN (SELECT j.id FROM jobqueue_job j WHERE j.id = seen.job) IS NULL
            ELSE seen.at <= now() - %(age)s::double precision * interval '1 second' END
    ))
)
SELECT max(id) FROM seen
"""


async def forget_events(
    connection: Connection, after: int, age: float | None, limit: int
) -> int | None:
    """Look at the events after this id; delete notes on jobs that are gone, and acts of
    people older than `age` seconds (None: never).

    Return the last id seen; None when there was none left.
    """
    parameters = {"after": after, "age": age, "limit": limit, "notes": list(NOTES)}
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(FORGET_EVENTS, parameters)
    last: int | None = await cursor.fetchone()
    return last
