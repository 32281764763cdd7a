"""What there is for the leader to do, in one cheap query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row

Connection = AsyncConnection[Any]

# Every part is one probe of a partial index, so that an idle leader costs one statement each time.
# `next_due`: a held row's moment is the end of its hold; such rows stand at the index's start.
FIND = """
SELECT
    EXTRACT(EPOCH FROM clock_timestamp())::double precision AS now,
    EXTRACT(EPOCH FROM LEAST(
        (SELECT run_at FROM jobqueue_job
            WHERE state = 'SCHEDULED' AND hold_until IS NULL ORDER BY run_at LIMIT 1),
        (SELECT min(GREATEST(run_at, hold_until)) FROM (
            SELECT run_at, hold_until FROM jobqueue_job
            WHERE state = 'SCHEDULED' ORDER BY run_at LIMIT 100) AS earliest)
    ))::double precision AS next_due,
    EXISTS (
        SELECT FROM jobqueue_job j
        WHERE j.state = 'RUNNING' AND (j.lease_expires_at <= now() OR EXISTS (
            SELECT FROM jobqueue_worker w WHERE w.id = j.worker AND w.died_at IS NOT NULL))
    ) AS reclaim,
    EXISTS (
        SELECT FROM jobqueue_job
        WHERE expires_at IS NOT NULL AND state IN ('SCHEDULED', 'READY', 'BLOCKED')
          AND expires_at <= now()
    ) OR EXISTS (
        SELECT FROM jobqueue_job
        WHERE parked_at IS NOT NULL AND state = 'SCHEDULED'
          AND parked_at <= now() - %(unknown)s * interval '1 second'
    ) AS expire,
    EXISTS (
        SELECT FROM json_each_text(%(retention)s::json) AS keep(state, age)
        WHERE EXISTS (
            SELECT FROM jobqueue_job j
            WHERE j.state IN ('CANCELLED', 'DEAD', 'SUCCEEDED') AND j.state = keep.state
              AND j.finished_at <= now() - keep.age::double precision * interval '1 second')
    ) AS prune
"""


@dataclass(frozen=True, slots=True)
class DueWork:
    """What is due. Moments as seconds since the epoch, by the database's clock."""

    now: float
    next_due: float | None
    reclaim: bool
    expire: bool
    prune: bool


async def find(connection: Connection, unknown: float, retention: Mapping[str, float]) -> DueWork:
    """Return which steps have work, and when the next scheduled job falls due."""
    cursor = connection.cursor(row_factory=class_row(DueWork))
    await cursor.execute(FIND, {"unknown": unknown, "retention": json.dumps(dict(retention))})
    answer = await cursor.fetchone()
    assert answer is not None  # noqa: S101  (a SELECT without FROM)
    return answer
