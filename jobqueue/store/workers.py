"""The worker's own row: register, report, certify a death."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

Connection = AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker says of itself at its start, and what its death can be certified by."""

    id: UUID
    name: str
    hostname: str
    pid: int
    pid_started: int | None
    pid_namespace: str
    time_namespace: str
    boot_id: str
    supervisor: str
    version: str
    queues: Sequence[str]
    concurrency: int


# A worker whose row was swept while it was cut off registers again under the same id.
REGISTER = """
INSERT INTO jobqueue_worker (id, name, hostname, pid, pid_started, pid_namespace, time_namespace,
    boot_id, supervisor, version, queues, concurrency, phase, started_at, last_seen_at)
VALUES (%(id)s, %(name)s, %(hostname)s, %(pid)s, %(pid_started)s, %(pid_namespace)s,
    %(time_namespace)s, %(boot_id)s, %(supervisor)s, %(version)s, %(queues)s::jsonb,
    %(concurrency)s, 'RUNNING', clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE SET last_seen_at = clock_timestamp()
"""


async def register(connection: Connection, identity: Identity) -> None:
    """Make this process known. Required before the first claim."""
    parameters = {**asdict(identity), "queues": json.dumps(list(identity.queues))}
    await connection.execute(REGISTER, parameters)


REPORT = """
UPDATE jobqueue_worker SET
    phase = %(phase)s, last_seen_at = clock_timestamp(), stop_report = %(report)s::jsonb
WHERE id = %(worker)s
"""


async def report(
    connection: Connection, worker: UUID, phase: str, stop_report: dict[str, Any] | None
) -> None:
    """Show a phase of the shutdown; the last one comes with the accounting."""
    await connection.execute(
        REPORT,
        {
            "worker": worker,
            "phase": phase,
            "report": None if stop_report is None else json.dumps(stop_report),
        },
    )


TABLES = """
SELECT count(*) FROM pg_class WHERE relkind = 'r' AND pg_table_is_visible(oid)
AND relname IN ('jobqueue_job', 'jobqueue_attempt', 'jobqueue_leaderlease', 'jobqueue_worker',
    'jobqueue_queue', 'jobqueue_schedule', 'jobqueue_jobevent')
"""


async def tables_exist(connection: Connection) -> bool:
    """Whether the migrations have run here."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(TABLES)
    row = await cursor.fetchone()
    return row is not None and row[0] == 7
