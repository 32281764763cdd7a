"""Whether anything is left to do in some queues; asked by drain mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from jobqueue.versions import CLAIMABLE, NEWER, OURS, READY_APART, SCHEDULED_APART, SUSPECT, TIMED

Connection = AsyncConnection[Any]

# Parked jobs, those of paused queues and those for newer code are counted apart: this run cannot
# end them. Order and LIMIT make each question a probe of the claim's index. BLOCKED rows
# do not occur yet; counting them will need an index of their own.
# For '*' the names are found: all that are ready, and those of what runs or falls due first.
LEFT = f"""
WITH RECURSIVE ready(name) AS (
    (SELECT queue FROM jobqueue_job WHERE {CLAIMABLE} AND '*' = ANY(%(queues)s::text[])
     ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM jobqueue_job WHERE {CLAIMABLE} AND queue > r.name
            ORDER BY queue LIMIT 1)
    FROM ready r WHERE r.name IS NOT NULL
), further AS MATERIALIZED (
    SELECT name FROM ready WHERE name IS NOT NULL
    UNION SELECT name FROM jobqueue_queue WHERE '*' = ANY(%(queues)s::text[])
    UNION (SELECT queue FROM jobqueue_job
        WHERE {SUSPECT} AND '*' = ANY(%(queues)s::text[])
        ORDER BY priority DESC, run_at, id LIMIT 1000)
    UNION (SELECT queue FROM jobqueue_job
        WHERE state = 'RUNNING' AND '*' = ANY(%(queues)s::text[])
        ORDER BY worker LIMIT 1000)
    UNION (SELECT queue FROM jobqueue_job
        WHERE {TIMED} AND '*' = ANY(%(queues)s::text[])
          AND ('-' || queue) <> ALL(%(queues)s::text[])
        ORDER BY run_at LIMIT 1000)
), served AS MATERIALIZED (
    SELECT name, EXISTS (
        SELECT FROM jobqueue_queue q WHERE q.name = names.name AND q.paused_at IS NOT NULL
    ) AS paused
    FROM (
        SELECT unnest(%(queues)s::text[]) AS name
        UNION SELECT name FROM further WHERE ('-' || name) <> ALL(%(queues)s::text[])
    ) names WHERE left(name, 1) NOT IN ('*', '-')
)
SELECT
    EXISTS (
        SELECT FROM served s WHERE NOT s.paused AND (
            (SELECT true FROM jobqueue_job
                WHERE {CLAIMABLE} AND queue = s.name AND parked_at IS NULL
                ORDER BY priority DESC, run_at, id LIMIT 1)
            OR EXISTS (SELECT FROM jobqueue_job WHERE {SUSPECT} AND queue = s.name))
    ) AS waiting,
    EXISTS (
        SELECT FROM served s JOIN jobqueue_job j ON j.queue = s.name WHERE j.state = 'RUNNING'
    ) AS running,
    EXISTS (
        SELECT FROM served s JOIN jobqueue_job j ON queue = s.name
        WHERE {TIMED} AND NOT s.paused
          AND (%(horizon)s::double precision IS NULL
               OR GREATEST(run_at, hold_until) <= now() + %(horizon)s * interval '1 second')
    ) AS scheduled,
    (SELECT count(*) FROM served s JOIN jobqueue_job j ON queue = s.name
        WHERE {SCHEDULED_APART} AND {OURS}) AS parked,
    (SELECT count(*) FROM served s JOIN jobqueue_job j ON queue = s.name
        WHERE {SCHEDULED_APART} AND {NEWER})
    + (SELECT count(*) FROM served s JOIN jobqueue_job j ON queue = s.name
        WHERE {READY_APART} AND {NEWER}) AS newer,
    ARRAY(
        SELECT s.name FROM served s WHERE s.paused AND (
            (SELECT true FROM jobqueue_job
                WHERE {CLAIMABLE} AND queue = s.name
                ORDER BY priority DESC, run_at, id LIMIT 1)
            OR EXISTS (SELECT FROM jobqueue_job WHERE {SUSPECT} AND queue = s.name)
            OR EXISTS (SELECT FROM jobqueue_job WHERE {TIMED} AND queue = s.name)
            OR EXISTS (SELECT FROM jobqueue_job WHERE {SCHEDULED_APART} AND queue = s.name))
        ORDER BY s.name
    ) AS paused,
    (SELECT count(*) FROM jobqueue_job j
        WHERE j.state IN ('CANCELLED', 'DEAD', 'SUCCEEDED') AND j.state = 'DEAD'
          AND (j.queue = ANY(%(queues)s::text[])
               OR '*' = ANY(%(queues)s::text[]) AND ('-' || j.queue) <> ALL(%(queues)s::text[]))
          AND j.finished_at >= (SELECT started_at FROM jobqueue_worker WHERE id = %(worker)s)
    ) AS died,
    (SELECT count(*) FROM jobqueue_schedule WHERE enabled) AS schedules
"""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left in the served queues, whoever holds it."""

    waiting: bool
    running: bool
    scheduled: bool
    parked: int
    newer: int  # for code that understands more
    paused: list[str]  # queues that have waiting jobs and are paused
    died: int
    schedules: int

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.scheduled)


async def left(
    connection: Connection, queues: Sequence[str], horizon: float | None, worker: UUID
) -> Left:
    """Look at these queues. Scheduled jobs count when they fall due within `horizon` seconds (all
    of them without one), dead ones when they died since this worker's start."""
    cursor = connection.cursor(row_factory=class_row(Left))
    await cursor.execute(LEFT, {"queues": list(queues), "horizon": horizon, "worker": worker})
    answer = await cursor.fetchone()
    assert answer is not None  # noqa: S101  (a SELECT without FROM)
    return answer
