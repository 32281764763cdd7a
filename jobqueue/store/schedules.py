"""Cron's rows: which schedules are due, and the tick that happens once, whoever leads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row, scalar_row, tuple_row

from jobqueue.store.inserts import INSERT
from jobqueue.stored_json import Unreadable, read_stored

Connection = AsyncConnection[Any]

NEXT = """
SELECT EXTRACT(EPOCH FROM clock_timestamp())::double precision AS now,
    (SELECT EXTRACT(EPOCH FROM min(next_run_at))::double precision FROM jobqueue_schedule
        WHERE enabled AND next_run_at IS NOT NULL AND id <> ALL(%(skip)s::bigint[])) AS at,
    EXISTS (SELECT FROM jobqueue_schedule
        WHERE enabled AND next_run_at IS NULL AND id <> ALL(%(skip)s::bigint[])) AS unplanned
"""


@dataclass(frozen=True, slots=True)
class Next:
    """When the next schedule is due (epoch seconds), and whether one has no plan yet."""

    now: float
    at: float | None
    unplanned: bool


async def next_run(connection: Connection, skip: Collection[int] = ()) -> Next:
    """Return the moment of the next due schedule."""
    cursor = connection.cursor(row_factory=class_row(Next))
    await cursor.execute(NEXT, {"skip": list(skip)})
    answer = await cursor.fetchone()
    assert answer is not None  # noqa: S101  (a SELECT without FROM)
    return answer


DUE = """
SELECT id, task FROM jobqueue_schedule
WHERE enabled AND (next_run_at IS NULL OR next_run_at <= now())
  AND id <> ALL(%(skip)s::bigint[])
ORDER BY next_run_at NULLS FIRST, id
LIMIT %(limit)s
"""


async def due(
    connection: Connection, limit: int, skip: Collection[int] = ()
) -> list[tuple[int, str]]:
    """Return the schedules that are due or have no plan yet, with their tasks."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(DUE, {"limit": limit, "skip": list(skip)})
    return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Due:
    """A schedule whose row this transaction holds. What Python cannot read of it is in `fault`."""

    id: int
    name: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    cron: str
    timezone: str
    queue: str
    priority: int
    catch_up: str
    next_run_at: datetime | None
    planned: str | None  # the same, as the server writes it
    now: datetime
    fault: str


# SQL may have stored a date before Christ, an infinite one, or numbers of any length.
LOCK_DUE = """
SELECT id, name, task, args::text, kwargs::text, cron, timezone, queue, priority, catch_up,
    CASE WHEN next_run_at > '0001-01-02' AND next_run_at < '9999-01-01' THEN next_run_at
    END AS next_run_at,
    next_run_at::text AS planned, clock_timestamp() AS now
FROM jobqueue_schedule
WHERE id = %(id)s AND enabled AND (next_run_at IS NULL OR next_run_at <= clock_timestamp())
FOR NO KEY UPDATE SKIP LOCKED
"""


async def lock_due(connection: Connection, id: int) -> Due | None:
    """Lock a due schedule; None if another session holds it or has done it."""
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(LOCK_DUE, {"id": id})
    row = await cursor.fetchone()
    return None if row is None else _as_due(row)


def _as_due(row: dict[str, Any]) -> Due:
    fault = ""
    for name, kind in (("args", list), ("kwargs", dict)):
        value = row[name] = read_stored(row[name])
        if isinstance(value, Unreadable):
            fault = f"{name} {value}"
        elif not isinstance(value, kind):
            fault = f"{name} is not a JSON {'array' if kind is list else 'object'}"
    if row["next_run_at"] is None and row["planned"] is not None:
        fault = f"next_run_at {row['planned']} is beyond the years 1 to 9998"
    return Due(**row, fault=fault)


TICK = """
INSERT INTO jobqueue_scheduletick (schedule_id, tick_at, fired_by)
VALUES (%(schedule)s, %(at)s, %(by)s)
ON CONFLICT DO NOTHING
RETURNING id
"""


async def tick(connection: Connection, schedule: int, at: datetime, by: str) -> int | None:
    """Record a tick; None when it happened before."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(TICK, {"schedule": schedule, "at": at, "by": by})
    id: int | None = await cursor.fetchone()
    return id


async def insert_job(connection: Connection, row: Mapping[str, Any]) -> int:
    """Insert a drafted job, exactly as a request would."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(INSERT, row)
    id: int | None = await cursor.fetchone()
    assert id is not None  # noqa: S101  (INSERT ... RETURNING)
    return id


LINK = """
UPDATE jobqueue_scheduletick SET job = %(job)s WHERE id = %(tick)s
"""


async def link(connection: Connection, tick: int, job: int) -> None:
    """Record which job a tick made."""
    await connection.execute(LINK, {"tick": tick, "job": job})


PLAN = """
UPDATE jobqueue_schedule SET
    next_run_at = %(next)s, last_run_at = COALESCE(%(last)s, last_run_at),
    strikes = 0, last_error = ''
WHERE id = %(id)s
"""


async def plan(
    connection: Connection, id: int, next_run_at: datetime, last_run_at: datetime | None
) -> None:
    """After a success: plan the next tick."""
    await connection.execute(PLAN, {"id": id, "next": next_run_at, "last": last_run_at})


# The planned moment is part of the condition, so that two leaders count one failure once.
STRIKE = """
UPDATE jobqueue_schedule SET
    strikes = strikes + 1,
    last_error = %(error)s,
    next_run_at = COALESCE(%(next)s, clock_timestamp() + interval '1 minute'),
    enabled = strikes + 1 < %(most)s,
    disabled_reason = CASE WHEN strikes + 1 < %(most)s THEN disabled_reason ELSE %(reason)s END
WHERE id = %(id)s AND enabled AND next_run_at IS NOT DISTINCT FROM %(planned)s::timestamptz
RETURNING enabled
"""


async def strike(
    connection: Connection,
    schedule: Due,
    *,
    error: str,
    reason: str,
    next_run_at: datetime | None,
    most: int,
) -> bool | None:
    """Count a failure of this schedule; return whether it is still enabled, None if it moved on.

    Without a next tick (a broken expression) it is tried again in a minute.
    """
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(
        STRIKE,
        {
            "id": schedule.id,
            "planned": schedule.planned,
            "error": error,
            "reason": reason,
            "next": next_run_at,
            "most": most,
        },
    )
    enabled: bool | None = await cursor.fetchone()
    return enabled


NOTE = """
UPDATE jobqueue_schedule SET last_error = %(error)s WHERE id = %(id)s AND last_error <> %(error)s
"""


async def note(connection: Connection, id: int, error: str) -> None:
    """Show a failure without counting a strike."""
    await connection.execute(NOTE, {"id": id, "error": error})
