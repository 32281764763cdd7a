"""Exchange: claims that have succeeded make room for others, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from jobqueue.states import State
from jobqueue.store.claims import (
    CLAIM_PICKED,
    COLUMNS,
    FIRST,
    ONWARD,
    Claim,
    Key,
    as_claims,
    claim_parameters,
)
from jobqueue.store.finish import Ending, Written
from jobqueue.store.values import array, read_json, uuids

Connection = AsyncConnection[Any]

# What `finish.FINISH` does for a plain success, which most outcomes are; nothing has to be decided.
# What cannot be written here (locked, or no longer ours) is left to FINISH.
_SUCCEED = """\
WITH locked AS MATERIALIZED (
    SELECT j.id, j.lease_token, j.claimed_at, j.attempts FROM jobqueue_job j
    WHERE j.id = ANY(%(ending_ids)s::bigint[]) AND j.lease_token = ANY(%(ending_tokens)s::uuid[])
    ORDER BY j.id
    FOR NO KEY UPDATE SKIP LOCKED
), written AS (
    UPDATE jobqueue_job j SET
        state = 'SUCCEEDED',
        reason = '',
        hold_until = NULL,
        parked_at = NULL,
        attempts = j.attempts + 1,
        result = (%(results)s::text[])[
            array_position(%(ending_tokens)s::uuid[], j.lease_token)
        ]::jsonb,
        finished_at = now(),
        worker = NULL, lease_token = NULL, lease_expires_at = NULL, claimed_at = NULL,
        not_ending_since = NULL
    WHERE j.id = ANY(ARRAY(SELECT id FROM locked))
      AND j.lease_token = ANY(%(ending_tokens)s::uuid[])
), history AS (
    INSERT INTO jobqueue_attempt (token, job_id, number, worker, outcome, started_at, finished_at,
        recorded_by)
    SELECT lease_token, id, attempts + 1, %(worker)s, 'SUCCEEDED', claimed_at, now(), 'holder'
    FROM locked
), """

# Those that could not be written keep their slots.
_LIMIT = """\
GREATEST(%(limit)s - cardinality(%(ending_ids)s::bigint[]) + (SELECT count(*) FROM locked), 0)"""

# Besides the claims it returns one row, with place 0, whose arguments column lists what was
# written.
_ANSWER = """\
SELECT 0, NULL, NULL, COALESCE(
    (SELECT json_agg(array_position(%(ending_tokens)s::uuid[], lease_token)) FROM locked), '[]'
)::text{nulls}
UNION ALL
SELECT * FROM taken
"""
_TAKEN = f", taken AS (\n{CLAIM_PICKED})\n{_ANSWER.format(nulls=', NULL' * (COLUMNS - 4))}"
FINISH_AND_CLAIM = "\n" + _SUCCEED + FIRST.format(limit=_LIMIT, skip="") + _TAKEN
FINISH_AND_CLAIM_ONWARD = "\n" + _SUCCEED + ONWARD.format(limit=_LIMIT) + _TAKEN


def can_exchange(ending: Ending) -> bool:
    """Whether `finish_and_claim` can write this ending: a plain success."""
    return ending.outcome == "SUCCEEDED" and ending.progress is None


async def finish_and_claim(
    connection: Connection,
    queue: str,
    worker: UUID,
    tokens: Sequence[UUID],
    lease: float,
    after: Key | None,
    ended: Sequence[Ending],
) -> tuple[list[Written], list[Claim]]:
    """Record these successes and take others in their place; lease in seconds.

    Returns those that were written; the others keep their slots, and as many tokens stay unused.
    """
    parameters = claim_parameters(queue, worker, tokens, lease, after)
    parameters["ending_ids"] = array(ending.id for ending in ended)
    parameters["ending_tokens"] = uuids(ending.token for ending in ended)
    parameters["results"] = _results(ended)
    cursor = connection.cursor(row_factory=tuple_row, binary=True)
    await cursor.execute(FINISH_AND_CLAIM if after is None else FINISH_AND_CLAIM_ONWARD, parameters)
    answer, *rows = sorted(await cursor.fetchall())
    written = [
        Written(ended[place - 1].token, State.SUCCEEDED, queue=None, attempts=None, busy=False)
        for place in read_json(answer[3])
    ]
    return written, as_claims(rows, tokens)


def _results(ended: Sequence[Ending]) -> list[str | None] | str:
    results = [None if ending.result == "null" else ending.result for ending in ended]
    return results if any(results) else "{}"
