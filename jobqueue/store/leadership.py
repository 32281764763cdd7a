"""Who leads: one row, changed by compare-and-set in the database's time, fenced by its term."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import scalar_row

from jobqueue.versions import UNDERSTANDS

Connection = AsyncConnection[Any]

# A worker w that could lead and understands jobs that this code does not.
NEWER_WORKER = f"""\
w.understands > {UNDERSTANDS} AND w.may_lead AND w.phase = 'RUNNING' AND w.died_at IS NULL
        AND w.last_seen_at > clock_timestamp() - %(alive)s * interval '1 second'"""

# A lease that is longer than it can be (the server's clock was set back, a backup was restored), or
# whose holder has not been heard of for a job's lease, is not believed. Twice the lease: during a
# deploy another worker's settings may differ.
HELD = """\
l.expires_at > clock_timestamp()
        AND l.expires_at <= clock_timestamp() + 2 * %(leader_lease)s * interval '1 second'
        AND EXISTS (SELECT FROM jobqueue_worker w WHERE w.id = l.holder AND w.died_at IS NULL
            AND w.last_seen_at > clock_timestamp() - %(alive)s * interval '1 second')"""

# Concurrent candidates queue on the row; the second one finds a holder and changes nothing.
# A worker's own unexpired row is taken too, under a new term: a win whose answer never arrived.
# A process that was certified dead never leads again, even when its statement arrives late.
ELECT = f"""
INSERT INTO jobqueue_leaderlease AS l (name, holder, term, acquired_at, expires_at)
SELECT 'maintenance', %(worker)s::uuid, 1, clock_timestamp(),
    clock_timestamp() + %(leader_lease)s * interval '1 second'
WHERE NOT EXISTS (
    SELECT FROM jobqueue_worker WHERE id = %(worker)s AND died_at IS NOT NULL
) AND NOT (
    %(yields)s AND EXISTS (SELECT FROM jobqueue_worker w WHERE {NEWER_WORKER})
)
ON CONFLICT (name) DO UPDATE SET
    holder = EXCLUDED.holder,
    term = l.term + 1,
    acquired_at = clock_timestamp(),
    expires_at = clock_timestamp() + %(leader_lease)s * interval '1 second'
WHERE l.holder IS NULL
   OR l.holder = EXCLUDED.holder
   OR NOT (
        {HELD}
   )
RETURNING term
"""


async def elect(
    connection: Connection,
    worker: UUID,
    lease: float,
    *,
    yields: bool = False,
    alive: float = 30.0,
) -> int | None:
    """Take the lead if nobody has it, for `lease` seconds; return the new term, or None.

    A worker lives that was seen within `alive` seconds; another one's lease is not believed.
    `yields`: not while a newer worker lives.
    """
    cursor = connection.cursor(row_factory=scalar_row)
    parameters = {"worker": worker, "leader_lease": lease, "yields": yields, "alive": alive}
    await cursor.execute(ELECT, parameters)
    term: int | None = await cursor.fetchone()
    return term


RENEW = """
UPDATE jobqueue_leaderlease SET
    expires_at = clock_timestamp() + %(lease)s * interval '1 second'
WHERE name = 'maintenance' AND holder = %(worker)s AND term = %(term)s
  AND expires_at > clock_timestamp()
  AND NOT EXISTS (SELECT FROM jobqueue_worker WHERE id = %(worker)s AND died_at IS NOT NULL)
RETURNING term
"""


async def renew(connection: Connection, worker: UUID, term: int, lease: float) -> bool:
    """Keep the lead for `lease` more seconds. A lapsed term stays lapsed, even if still free."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(RENEW, {"worker": worker, "term": term, "lease": lease})
    return await cursor.fetchone() is not None


# The term stays, so that it never repeats; a late resign finds its successor's and does nothing.
RESIGN = """
UPDATE jobqueue_leaderlease SET holder = NULL, acquired_at = NULL, expires_at = NULL
WHERE name = 'maintenance' AND holder = %(worker)s AND term = %(term)s
RETURNING term
"""


async def resign(connection: Connection, worker: UUID, term: int) -> bool:
    """Give the lead back; return whether this holder still had it in this term."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(RESIGN, {"worker": worker, "term": term})
    return await cursor.fetchone() is not None
