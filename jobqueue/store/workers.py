"""The worker's own row: register, report, certify a death."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection, errors
from psycopg.rows import tuple_row

from jobqueue import server_rules
from jobqueue.versions import UNDERSTANDS

Connection = AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker says about itself at its start, including what can certify its death."""

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
    may_lead: bool


# A worker whose row was deleted while it was cut off registers again under the same id.
REGISTER = """
INSERT INTO jobqueue_worker (id, name, hostname, pid, pid_started, pid_namespace, time_namespace,
    boot_id, supervisor, version, understands, queues, concurrency, may_lead, phase, started_at,
    last_seen_at)
VALUES (%(id)s, %(name)s, %(hostname)s, %(pid)s, %(pid_started)s, %(pid_namespace)s,
    %(time_namespace)s, %(boot_id)s, %(supervisor)s, %(version)s, %(understands)s,
    %(queues)s::jsonb, %(concurrency)s, %(may_lead)s, 'RUNNING', clock_timestamp(),
    clock_timestamp())
ON CONFLICT (id) DO UPDATE SET last_seen_at = clock_timestamp()
"""


async def register(connection: Connection, identity: Identity) -> None:
    """Make this process known. Required before the first claim."""
    parameters = asdict(identity) | {
        "queues": json.dumps(list(identity.queues)),
        "understands": UNDERSTANDS,
    }
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


TABLES = (
    "jobqueue_attempt",
    "jobqueue_bulkorder",
    "jobqueue_job",
    "jobqueue_jobevent",
    "jobqueue_leaderlease",
    "jobqueue_minute",
    "jobqueue_queue",
    "jobqueue_schedule",
    "jobqueue_scheduletick",
    "jobqueue_worker",
)

# A missing table has no rights. Nobody needs to change existing events.
RIGHTS = """
SELECT t.name, to_regclass(t.name) IS NOT NULL,
    ARRAY(
        SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r
        WHERE NOT has_table_privilege(to_regclass(t.name), r)
          AND NOT (t.name = 'jobqueue_jobevent' AND r = 'UPDATE')
    )
FROM unnest(%(tables)s::text[]) AS t(name)
ORDER BY t.name
"""
MIGRATED = """
SELECT count(*) = 0 OR bool_or(name = %(newest)s) FROM django_migrations WHERE app = 'jobqueue'
"""


async def obstacle(connection: Connection, newest: str, oldest: int, migrate: str) -> str | None:
    """Return in one sentence why a worker cannot use this database, or None.

    `oldest`: the first major version of the server that will do. `newest`: the last migration of
    this code; `migrate`: the command that runs it. Where the tables were made without migrations,
    or only another role may read which ran, it is enough that the tables exist.
    """
    info = connection.info
    encoding = info.parameter_status("server_encoding")
    if fault := server_rules.fault_of(info.server_version, encoding, oldest):
        return str(fault)
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(RIGHTS, {"tables": list(TABLES)})
    rows = await cursor.fetchall()
    missing = [name for name, exists, _ in rows if not exists]
    if len(missing) == len(TABLES):
        return f"The tables of jobqueue are missing in this database: run `{migrate}`."
    if missing or not await _is_migrated(connection, newest):
        return f"The tables of jobqueue are older than this code: run `{migrate}`."
    rights = [f"{', '.join(denied)} on {name}" for name, _, denied in rows if denied]
    if rights:
        return f"The database user lacks rights that jobqueue needs: {'; '.join(rights)}."
    return None


async def _is_migrated(connection: Connection, newest: str) -> bool:
    cursor = connection.cursor(row_factory=tuple_row)
    try:
        await cursor.execute(MIGRATED, {"newest": newest})
    except (errors.UndefinedTable, errors.InsufficientPrivilege):
        return True
    row = await cursor.fetchone()
    return row is not None and bool(row[0])
