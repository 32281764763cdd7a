"""Whether anything is left to do in some queues; asked by the drain mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row

Connection = AsyncConnection[Any]

# Parked jobs and those of paused queues are counted apart: nothing that this run does ends them.
# Order and LIMIT make each question a probe of the claim's index. BLOCKED rows are to be asked for
# as soon as there can be any, with an index of their own: else that would read the whole history.
LEFT = """
WITH served AS MATERIALIZED (
    SELECT name, EXISTS (
        SELECT FROM jobqueue_queue q WHERE q.name = names.name AND q.paused_at IS NOT NULL
    ) AS paused
    FROM unnest(%(queues)s::text[]) AS names(name)
)
SELECT clock_timestamp() AS now,
    EXISTS (
        SELECT FROM served s WHERE NOT s.paused AND (
            SELECT true FROM jobqueue_job j
            WHERE j.state = 'READY' AND j.queue = s.name AND j.parked_at IS NULL
            ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1)
    ) AS waiting,
    EXISTS (
        SELECT FROM served s JOIN jobqueue_job j ON j.queue = s.name WHERE j.state = 'RUNNING'
    ) AS running,
    EXISTS (
        SELECT FROM served s JOIN jobqueue_job j ON j.queue = s.name
        WHERE j.state = 'SCHEDULED' AND NOT s.paused AND j.parked_at IS NULL
          AND (%(horizon)s::double precision IS NULL
               OR GREATEST(j.run_at, j.hold_until)
                  <= now() + %(horizon)s * interval '1 second')
    ) AS scheduled,
    (SELECT count(*) FROM served s JOIN jobqueue_job j ON j.queue = s.name
        WHERE j.state = 'SCHEDULED' AND j.parked_at IS NOT NULL) AS parked,
    ARRAY(
        SELECT s.name FROM served s WHERE s.paused AND (
            (SELECT true FROM jobqueue_job j
                WHERE j.state = 'READY' AND j.queue = s.name
                ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1)
            OR EXISTS (SELECT FROM jobqueue_job j
                WHERE j.state = 'SCHEDULED' AND j.queue = s.name))
        ORDER BY s.name
    ) AS paused,
    (SELECT count(*) FROM jobqueue_job j
        WHERE j.state IN ('CANCELLED', 'DEAD', 'SUCCEEDED') AND j.state = 'DEAD'
          AND j.queue = ANY(%(queues)s::text[])
          AND j.finished_at >= %(since)s::timestamptz) AS died,
    (SELECT count(*) FROM jobqueue_schedule WHERE enabled) AS schedules
"""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left in the served queues, whoever holds it."""

    now: datetime
    waiting: bool
    running: bool
    scheduled: bool
    parked: int
    paused: list[str]  # queues that have waiting jobs and are paused
    died: int
    schedules: int

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.scheduled)


async def left(
    connection: Connection, queues: Sequence[str], horizon: float | None, since: datetime | None
) -> Left:
    """Look at these queues. Scheduled jobs count when they fall due within `horizon` seconds (all
    of them without one), dead ones when they died since that moment."""
    cursor = connection.cursor(row_factory=class_row(Left))
    await cursor.execute(
        LEFT, {"queues": list(queues), "horizon": horizon, "since": since or "infinity"}
    )
    answer = await cursor.fetchone()
    assert answer is not None  # noqa: S101  (a SELECT without FROM)
    return answer
