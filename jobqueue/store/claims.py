"""Claim: READY rows become RUNNING under fresh tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import scalar_row, tuple_row

from jobqueue.store.values import read_json, uuids
from jobqueue.versions import CLAIMABLE, SUSPECT

Connection = AsyncConnection[Any]


class Claim(NamedTuple):
    """A row that is now RUNNING here, with all that its attempt needs."""

    id: int
    token: UUID
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    signature: str
    queue: str
    backend: str
    priority: int
    attempts: int
    failures: int
    max_attempts: int
    enqueued_at: float  # seconds since 1970; building a datetime for every job would be wasted work
    started_at: float
    claimed_at: float
    traceparent: str
    cancel_requested: bool
    parked_seconds: float | None  # since it was first parked as an unknown task
    run_at: Any = None
    took: float = 0.0  # seconds into the claim when it reached this row
    fault: str = ""  # why its arguments or options cannot be read, if so; they are empty then
    suspect: bool = False  # its last two attempts were lost: it may have killed their process

    @property
    def key(self) -> Key:
        """Its place in its queue."""
        return Key(self.priority, self.run_at, self.id)


class Key(NamedTuple):
    """A place in a queue: higher priorities first, then the earlier moment."""

    priority: int
    run_at: Any
    id: int


# The opening of a statement that takes the first ready rows. The ids are picked as an array: a join
# with the picked rows turns into a sequential scan under a generic plan. One queue per statement: a
# list of queues loses the index's order.
FIRST = f"""\
picked AS MATERIALIZED (
    SELECT ARRAY(
        SELECT id FROM jobqueue_job
        WHERE {CLAIMABLE} AND queue = %(queue)s
          AND (expires_at IS NULL OR expires_at > now())
          AND NOT EXISTS (
              SELECT FROM jobqueue_queue WHERE name = %(queue)s AND paused_at IS NOT NULL
          ){{skip}}
        ORDER BY priority DESC, run_at, id
        LIMIT {{limit}}
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS ids
)
"""

# The same after a key, without reading what comes before it: first the rest of its
# priority, then the lower ones. A single row comparison won't work: priority sorts descending.
ONWARD = f"""\
picked AS MATERIALIZED (
    SELECT ARRAY(
        SELECT id FROM (
            SELECT id FROM (
                SELECT id FROM jobqueue_job
                WHERE {CLAIMABLE} AND queue = %(queue)s
                  AND priority = %(priority)s::smallint AND (run_at, id) > (%(run_at)s, %(id)s)
                  AND (expires_at IS NULL OR expires_at > now())
                ORDER BY run_at, id
                LIMIT %(limit)s
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS alike
            UNION ALL
            SELECT id FROM (
                SELECT id FROM jobqueue_job
                WHERE {CLAIMABLE} AND queue = %(queue)s AND priority < %(priority)s::smallint
                  AND (expires_at IS NULL OR expires_at > now())
                ORDER BY priority DESC, run_at, id
                LIMIT %(limit)s
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS lower
        ) AS onward
        WHERE NOT EXISTS (
            SELECT FROM jobqueue_queue WHERE name = %(queue)s AND paused_at IS NOT NULL
        )
        LIMIT {{limit}}
    ) AS ids
)
"""

# Its closing part.
CLAIM_PICKED = """\
UPDATE jobqueue_job SET
    state = 'RUNNING',
    reason = '',
    worker = %(worker)s,
    lease_token = (%(tokens)s::uuid[])[array_position((SELECT ids FROM picked), id)],
    lease_expires_at = clock_timestamp() + %(lease)s * interval '1 second',
    started_at = COALESCE(started_at, clock_timestamp()),
    claimed_at = clock_timestamp()
WHERE id = ANY((SELECT ids FROM picked)::bigint[])
RETURNING array_position((SELECT ids FROM picked), id), id, task, args::text,
    NULLIF(kwargs, '{}')::text, NULLIF(options, '{}')::text, signature, queue, backend, priority,
    attempts, failures, max_attempts, date_part('epoch', enqueued_at),
    date_part('epoch', started_at), date_part('epoch', claimed_at), traceparent,
    cancel_requested_at IS NOT NULL,
    EXTRACT(EPOCH FROM clock_timestamp() - parked_at)::double precision, run_at,
    EXTRACT(EPOCH FROM clock_timestamp() - statement_timestamp())::double precision
"""
COLUMNS = 21
CLAIM = "\nWITH " + FIRST.format(limit="%(limit)s", skip="") + CLAIM_PICKED
# All but the rows that are set aside.
CLAIM_AROUND = (
    "\nWITH "
    + FIRST.format(limit="%(limit)s", skip="\n          AND id <> ALL(%(skip)s::bigint[])")
    + CLAIM_PICKED
)
CLAIM_ONWARD = "\nWITH " + ONWARD.format(limit="%(limit)s") + CLAIM_PICKED


async def claim(
    connection: Connection,
    queue: str,
    worker: UUID,
    tokens: Sequence[UUID],
    lease: float,
    after: Key | None = None,
) -> list[Claim]:
    """Take the first ready jobs of one queue, at most one for each token; lease in seconds.

    With `after` only those after this key.
    """
    parameters = claim_parameters(queue, worker, tokens, lease, after)
    cursor = connection.cursor(row_factory=tuple_row, binary=True)  # faster on both sides
    await cursor.execute(CLAIM if after is None else CLAIM_ONWARD, parameters)
    return as_claims(await cursor.fetchall(), tokens)


async def claim_around(
    connection: Connection,
    queue: str,
    worker: UUID,
    tokens: Sequence[UUID],
    lease: float,
    skip: Collection[int],
) -> list[Claim]:
    """Take the first ready jobs of one queue, except these."""
    parameters = claim_parameters(queue, worker, tokens, lease, None) | {"skip": list(skip)}
    cursor = connection.cursor(row_factory=tuple_row, binary=True)
    await cursor.execute(CLAIM_AROUND, parameters)
    return as_claims(await cursor.fetchall(), tokens)


READY = f"""
SELECT id FROM jobqueue_job
WHERE {CLAIMABLE} AND queue = %(queue)s AND id <> ALL(%(skip)s::bigint[])
ORDER BY priority DESC, run_at, id
LIMIT %(limit)s
"""


async def ready(connection: Connection, queue: str, limit: int, skip: Collection[int]) -> list[int]:
    """Return the first ready jobs of one queue, to try each by itself if one is refused."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(READY, {"queue": queue, "limit": limit, "skip": list(skip)})
    return await cursor.fetchall()


ONLY = """\
picked AS MATERIALIZED (
    SELECT ARRAY(
        SELECT id FROM jobqueue_job
        WHERE id = %(only)s AND {condition} AND queue = %(queue)s
          AND (expires_at IS NULL OR expires_at > now())
          AND NOT EXISTS (
              SELECT FROM jobqueue_queue WHERE name = %(queue)s AND paused_at IS NOT NULL
          )
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS ids
)
"""
CLAIM_ONE = "\nWITH " + ONLY.format(condition=CLAIMABLE) + CLAIM_PICKED
CLAIM_SUSPECT = "\nWITH " + ONLY.format(condition=SUSPECT) + CLAIM_PICKED


async def claim_one(
    connection: Connection, queue: str, worker: UUID, token: UUID, lease: float, job: int
) -> list[Claim]:
    """Take this job, if it is still ready."""
    parameters = claim_parameters(queue, worker, [token], lease, None) | {"only": job}
    cursor = connection.cursor(row_factory=tuple_row, binary=True)
    await cursor.execute(CLAIM_ONE, parameters)
    return as_claims(await cursor.fetchall(), [token])


SUSPECTS = f"""
SELECT queue, id FROM jobqueue_job
WHERE {SUSPECT} AND (expires_at IS NULL OR expires_at > now())
  AND (queue = ANY(%(queues)s::text[])
       OR '*' = ANY(%(queues)s::text[]) AND ('-' || queue) <> ALL(%(queues)s::text[]))
  AND queue NOT IN (SELECT name FROM jobqueue_queue WHERE paused_at IS NOT NULL)
  AND id <> ALL(%(skip)s::bigint[])
ORDER BY priority DESC, run_at, id
LIMIT %(limit)s
"""


async def suspects(
    connection: Connection, queues: Sequence[str], limit: int, skip: Collection[int]
) -> list[tuple[str, int]]:
    """Return queue and id of the first ready jobs that may have killed their process twice."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(SUSPECTS, {"queues": list(queues), "limit": limit, "skip": list(skip)})
    return await cursor.fetchall()


async def claim_suspect(
    connection: Connection, queue: str, worker: UUID, token: UUID, lease: float, job: int
) -> list[Claim]:
    """Take this suspect, if it is still ready."""
    parameters = claim_parameters(queue, worker, [token], lease, None) | {"only": job}
    cursor = connection.cursor(row_factory=tuple_row, binary=True)
    await cursor.execute(CLAIM_SUSPECT, parameters)
    return [claim._replace(suspect=True) for claim in as_claims(await cursor.fetchall(), [token])]


def claim_parameters(
    queue: str, worker: UUID, tokens: Sequence[UUID], lease: float, after: Key | None
) -> dict[str, Any]:
    """Return the parameters of FIRST (or, after a key, ONWARD) and CLAIM_PICKED."""
    parameters = {
        "queue": queue,
        "worker": worker,
        "tokens": uuids(tokens),
        "limit": len(tokens),
        "lease": lease,
    }
    return parameters if after is None else parameters | after._asdict()


def as_claims(rows: list[tuple[Any, ...]], tokens: Sequence[UUID]) -> list[Claim]:
    """Read what CLAIM_PICKED returned, in the order of the queue."""
    return [_as_claim(id, tokens[place - 1], *rest) for place, id, *rest in sorted(rows)]


def _as_claim(
    id: int, token: UUID, task: str, args: str, kwargs: str | None, options: str | None, *rest: Any
) -> Claim:
    """A value that Python cannot read, such as one with 5,000 digits, fails only its own job."""
    try:
        read = (
            read_json(args),
            read_json(kwargs) if kwargs else {},
            read_json(options) if options else {},
        )
        if not (type(read[0]) is list and type(read[1]) is type(read[2]) is dict):
            raise ValueError("args must be a JSON array, kwargs and options objects")
    except (ValueError, RecursionError) as error:
        return Claim._make((id, token, task, [], {}, {}, *rest, str(error), False))
    return Claim._make((id, token, task, *read, *rest, "", False))


# Asked after a cut connection: which of these tokens did the lost statement hand out?
FOUND = """
SELECT id, lease_token, task, args::text, kwargs::text, options::text, signature, queue, backend,
    priority, attempts, failures, max_attempts, date_part('epoch', enqueued_at),
    date_part('epoch', started_at), date_part('epoch', claimed_at), traceparent,
    cancel_requested_at IS NOT NULL,
    EXTRACT(EPOCH FROM clock_timestamp() - parked_at)::double precision, run_at,
    0.0::double precision
FROM jobqueue_job
WHERE state = 'RUNNING' AND worker = %(worker)s AND lease_token = ANY(%(tokens)s)
"""


async def found(connection: Connection, worker: UUID, tokens: Collection[UUID]) -> list[Claim]:
    """Return the rows that have one of these tokens."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(FOUND, {"worker": worker, "tokens": list(tokens)})
    return [_as_claim(*row) for row in await cursor.fetchall()]
