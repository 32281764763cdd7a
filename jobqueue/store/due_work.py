"""What there is for the leader to do, in one cheap query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row

from jobqueue.store.leadership import NEWER_WORKER
from jobqueue.versions import NEWER, OURS, TIMED

Connection = AsyncConnection[Any]

_LAPSED = """\
state = 'RUNNING' AND (lease_expires_at <= now() OR EXISTS (
            SELECT FROM jobqueue_worker h WHERE h.id = j.worker AND h.died_at IS NOT NULL))"""
_EXPIRED = """\
expires_at IS NOT NULL AND state IN ('SCHEDULED', 'READY', 'BLOCKED') AND expires_at <= now()"""
_PARKED_TOO_LONG = """\
parked_at IS NOT NULL AND state = 'SCHEDULED'
          AND parked_at <= now() - %(unknown)s * interval '1 second'"""

# Every part is one probe of a partial index, so that an idle leader costs one statement each time.
# `next_due`: a held row's moment is the end of its hold; such rows stand at the index's start.
FIND = f"""
SELECT
    EXTRACT(EPOCH FROM clock_timestamp())::double precision AS now,
    EXTRACT(EPOCH FROM LEAST(
        (SELECT run_at FROM jobqueue_job
            WHERE {TIMED} AND hold_until IS NULL ORDER BY run_at LIMIT 1),
        (SELECT min(GREATEST(run_at, hold_until)) FROM (
            SELECT run_at, hold_until FROM jobqueue_job
            WHERE {TIMED} ORDER BY run_at LIMIT 100) AS earliest)
    ))::double precision AS next_due,
    EXISTS (SELECT FROM jobqueue_job j WHERE {OURS} AND {_LAPSED}) AS reclaim,
    EXISTS (SELECT FROM jobqueue_job WHERE {OURS} AND {_EXPIRED})
        OR EXISTS (SELECT FROM jobqueue_job WHERE {OURS} AND {_PARKED_TOO_LONG}) AS expire,
    EXISTS (
        SELECT FROM jobqueue_worker w WHERE {NEWER_WORKER} AND (
            EXISTS (SELECT FROM jobqueue_job j
                WHERE {NEWER} AND needs <= w.understands AND {_LAPSED})
            OR EXISTS (SELECT FROM jobqueue_job
                WHERE {NEWER} AND needs <= w.understands AND {_EXPIRED})
            OR EXISTS (SELECT FROM jobqueue_job
                WHERE {NEWER} AND needs <= w.understands AND {_PARKED_TOO_LONG}))
    ) AS newer,
    EXISTS (
        SELECT FROM json_each_text(%(retention)s::json) AS keep(state, age)
        WHERE EXISTS (
            SELECT FROM jobqueue_job j
            WHERE j.state IN ('CANCELLED', 'DEAD', 'SUCCEEDED') AND j.state = keep.state AND {OURS}
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
    newer: bool  # one of these concerns a job that this code leaves alone, and a newer worker lives
    prune: bool


async def find(
    connection: Connection, unknown: float, retention: Mapping[str, float], alive: float = 30.0
) -> DueWork:
    """Return which steps have work, and when the next scheduled job falls due. A worker that was
    seen within `alive` seconds lives."""
    cursor = connection.cursor(row_factory=class_row(DueWork))
    parameters = {"unknown": unknown, "retention": json.dumps(dict(retention)), "alive": alive}
    await cursor.execute(FIND, parameters)
    answer = await cursor.fetchone()
    assert answer is not None  # noqa: S101  (a SELECT without FROM)
    return answer
