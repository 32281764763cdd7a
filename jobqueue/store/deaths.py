"""Certified deaths: which workers on this machine are silent, and the certificate itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row, scalar_row

Connection = AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker on this machine that has missed its beat, and what its process was."""

    id: UUID
    pid: int
    pid_started: int | None
    pid_namespace: str
    time_namespace: str
    boot_id: str
    last_seen_at: datetime


SILENT = """
SELECT w.id, w.pid, w.pid_started, w.pid_namespace, w.time_namespace, w.boot_id, w.last_seen_at
FROM jobqueue_worker w
JOIN jobqueue_worker me ON me.id = %(me)s AND me.boot_id <> '' AND w.boot_id = me.boot_id
    AND w.pid_namespace = me.pid_namespace AND w.time_namespace = me.time_namespace
WHERE w.id <> me.id AND w.died_at IS NULL AND w.phase <> 'STOPPED'
  AND w.last_seen_at <= now() - %(silence)s * interval '1 second'
ORDER BY w.last_seen_at
LIMIT 100
"""


async def silent(connection: Connection, me: UUID, silence: float) -> list[Silent]:
    """Return this machine's workers without a beat for `silence` seconds."""
    cursor = connection.cursor(row_factory=class_row(Silent))
    await cursor.execute(SILENT, {"me": me, "silence": silence})
    return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Death:
    """A recorded death, and whether the dead worker led."""

    worker: UUID
    led: bool


# Compare-and-set: no certificate for a process that has beaten since.
CERTIFY = """
UPDATE jobqueue_worker w SET died_at = clock_timestamp()
WHERE w.id = %(worker)s AND w.died_at IS NULL AND w.last_seen_at = %(last_seen_at)s
  AND w.last_seen_at <= now() - %(silence)s * interval '1 second'
RETURNING w.id AS worker,
    EXISTS (SELECT FROM jobqueue_leaderlease l WHERE l.holder = w.id) AS led
"""


async def certify(connection: Connection, silent: Silent, silence: float) -> Death | None:
    """Record that a silent process is dead, unless it has beaten since."""
    cursor = connection.cursor(row_factory=class_row(Death))
    await cursor.execute(
        CERTIFY,
        {"worker": silent.id, "last_seen_at": silent.last_seen_at, "silence": silence},
    )
    return await cursor.fetchone()


# A clean stop needs no certificate, unless something of it is still RUNNING.
CERTIFY_REAPED = """
UPDATE jobqueue_worker w SET died_at = clock_timestamp()
WHERE w.id = ANY(%(workers)s::uuid[]) AND w.died_at IS NULL
  AND (w.phase <> 'STOPPED'
       OR EXISTS (SELECT FROM jobqueue_job j WHERE j.state = 'RUNNING' AND j.worker = w.id))
RETURNING w.id AS worker,
    EXISTS (SELECT FROM jobqueue_leaderlease l WHERE l.holder = w.id) AS led
"""


async def certify_reaped(connection: Connection, workers: Sequence[UUID]) -> list[Death]:
    """Record the deaths of a supervisor's children whose exit it has collected."""
    cursor = connection.cursor(row_factory=class_row(Death))
    await cursor.execute(CERTIFY_REAPED, {"workers": list(workers)})
    return await cursor.fetchall()


SILENT_CHILDREN = """
SELECT id FROM jobqueue_worker
WHERE id = ANY(%(workers)s::uuid[]) AND died_at IS NULL AND phase <> 'STOPPED'
  AND last_seen_at <= clock_timestamp() - %(silence)s * interval '1 second'
"""


async def silent_children(
    connection: Connection, workers: Sequence[UUID], silence: float
) -> set[UUID]:
    """Return a supervisor's children without a beat for `silence` seconds."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(SILENT_CHILDREN, {"workers": list(workers), "silence": silence})
    return set(await cursor.fetchall())
