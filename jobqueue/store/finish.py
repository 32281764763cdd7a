"""Out of RUNNING by the holder: finish, release; and progress. All fenced by the token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import args_row, tuple_row

from jobqueue.states import Outcome
from jobqueue.store.values import array
from jobqueue.versions import NEWER

Connection = AsyncConnection[Any]

# One statement for every way out of RUNNING by its holder. `outcome` is null when the handler
# never started (returned, parked); then nothing is counted and no history is written.
# The next state is decided here, from the locked row (a snapshot could miss a cancel request), so
# that concurrent writers cannot disagree. A job that has become newer than this code is not sent
# back to wait by it: its lease lapses, and code that understands it reclaims it.
FINISH = f"""
WITH input AS (
    SELECT * FROM json_to_recordset(%(input)s::json) AS t(
        id bigint, token uuid, outcome text, final boolean, delay double precision,
        hold double precision, reason text, error_class text, error_message text, traceback text,
        result json, progress json)
), locked AS MATERIALIZED (
    SELECT j.id, j.lease_token, j.claimed_at, j.attempts, j.failures, j.max_attempts,
        j.expires_at, j.cancel_requested_at, {NEWER} AS newer
    FROM jobqueue_job j
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.lease_token = ANY(%(tokens)s::uuid[])
    ORDER BY j.id
    FOR NO KEY UPDATE SKIP LOCKED
), verdict AS MATERIALIZED (
    SELECT * FROM (SELECT t.*, j.newer, clock_timestamp() AS at, j.claimed_at, j.attempts,
        t.outcome IN ('FAILED', 'TIMED_OUT') AS counted,
        CASE
            WHEN t.outcome = 'SUCCEEDED' THEN 'SUCCEEDED'
            WHEN t.outcome = 'CANCELLED' THEN 'CANCELLED'
            WHEN t.outcome IN ('FAILED', 'TIMED_OUT')
                AND (t.final OR j.failures + 1 >= j.max_attempts) THEN 'DEAD'
            WHEN j.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
            WHEN t.outcome IN ('FAILED', 'TIMED_OUT', 'SNOOZED')
                AND j.expires_at <= clock_timestamp() + t.delay * interval '1 second' THEN 'DEAD'
            WHEN t.hold IS NOT NULL OR t.delay > 0 OR t.reason = 'unknown task' THEN 'SCHEDULED'
            ELSE 'READY'
        END AS state
    FROM input t
    JOIN locked j ON j.id = t.id AND j.lease_token = t.token) d
    WHERE NOT newer OR state IN ('SUCCEEDED', 'DEAD', 'CANCELLED')
), written AS (
    UPDATE jobqueue_job j SET
        state = v.state,
        reason = CASE
            WHEN v.state = 'SUCCEEDED' THEN ''
            WHEN v.state = 'CANCELLED' AND v.outcome IS DISTINCT FROM 'CANCELLED'
                THEN CASE WHEN v.outcome IS NULL THEN 'cancelled before start'
                    ELSE 'cancelled instead of running again' END
            WHEN v.state = 'DEAD' AND v.final THEN v.reason
            WHEN v.state = 'DEAD' AND NOT (v.counted AND j.failures + 1 >= j.max_attempts)
                THEN 'expired'
            WHEN v.state = 'DEAD' AND v.outcome = 'TIMED_OUT' THEN 'timed out'
            WHEN v.state = 'DEAD' THEN 'attempts spent'
            ELSE v.reason
        END,
        run_at = CASE WHEN v.state = 'SCHEDULED' AND v.delay > 0
            THEN v.at + v.delay * interval '1 second' ELSE j.run_at END,
        hold_until = v.at + v.hold * interval '1 second',
        parked_at = CASE WHEN v.reason = 'unknown task' THEN COALESCE(j.parked_at, v.at) END,
        attempts = j.attempts + (v.outcome IS NOT NULL)::int,
        failures = j.failures + COALESCE(v.counted, false)::int,
        suspect = j.suspect AND v.outcome IS NULL,
        interruptions = j.interruptions + (v.outcome IS NOT DISTINCT FROM 'INTERRUPTED')::int,
        snoozes = j.snoozes + (v.outcome IS NOT DISTINCT FROM 'SNOOZED')::int,
        last_error = CASE WHEN v.error_message <> '' OR v.error_class <> ''
            THEN concat_ws(': ', NULLIF(v.error_class, ''), NULLIF(v.error_message, ''))
            ELSE j.last_error END,
        progress = COALESCE(v.progress::jsonb, j.progress),
        result = v.result::jsonb,
        started_at = CASE WHEN v.outcome IS NULL AND j.attempts = 0 THEN NULL
            ELSE j.started_at END,
        finished_at = CASE WHEN v.state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') THEN v.at END,
        worker = NULL, lease_token = NULL, lease_expires_at = NULL, claimed_at = NULL,
        not_ending_since = NULL
    FROM verdict v
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = v.id AND j.lease_token = v.token
    RETURNING v.token, j.state, j.queue, j.attempts
), history AS (
    INSERT INTO jobqueue_attempt (token, job_id, number, worker, outcome, started_at, finished_at,
        error_class, error_message, traceback, recorded_by)
    SELECT v.token, v.id, v.attempts + 1, %(worker)s, v.outcome, v.claimed_at, v.at,
        COALESCE(v.error_class, ''), COALESCE(v.error_message, ''), COALESCE(v.traceback, ''),
        'holder'
    FROM verdict v
    WHERE v.outcome IS NOT NULL
)
SELECT t.token, w.state, w.queue, w.attempts,
    w.token IS NULL AND EXISTS (
        SELECT FROM jobqueue_job j
        WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = t.id AND j.lease_token = t.token
    ) AS busy, w.token IS NULL AND EXISTS (
        SELECT FROM locked m WHERE m.lease_token = t.token AND m.newer
    ) AS newer, current_setting('jobqueue.attempt', true) AS mark
FROM input t LEFT JOIN written w ON w.token = t.token
"""

# The driver remembers how it read a statement only up to 4,096 characters.
_SHORT_FINISH = re.sub(r"\n +", "\n", FINISH).strip()


class Ending(NamedTuple):
    """How one claim leaves RUNNING. Delay and hold in seconds; JSON as text."""

    id: int
    token: UUID
    outcome: Outcome | None
    final: bool = False  # a failure that a retry cannot mend
    delay: float = 0.0
    hold: float | None = None
    reason: str = ""
    error_class: str = ""
    error_message: str = ""
    traceback: str = ""
    result: str | None = None
    progress: str | None = None

    def as_json(self, token: str) -> str:
        """One element of the statement's list; what is absent is left out."""
        if self.outcome is Outcome.SUCCEEDED:  # nothing else is needed; most are of this kind
            text = f'{{"id": {self.id}, "token": "{token}", "outcome": "SUCCEEDED"}}'
        else:
            text = self._in_words(token)
        for name in ("result", "progress"):
            if (value := getattr(self, name)) is not None:
                text = f'{text[:-1]}, "{name}": {value}}}'
        return text

    def _in_words(self, token: str) -> str:
        parts = {"id": self.id, "token": token, "delay": self.delay, "final": self.final}
        for name in ("outcome", "hold", "reason", "error_class", "error_message", "traceback"):
            value = getattr(self, name)
            if value is not None:
                parts[name] = value
        return json.dumps(parts, ensure_ascii=False)


class Written(NamedTuple):
    """The answer to one ending: the job's new state; or newer, or busy; or none of these: a
    refusal."""

    token: UUID
    state: str | None
    queue: str | None
    attempts: int | None
    busy: bool  # somebody else has locked the row
    newer: bool = False  # this code may not send the job back to wait
    mark: str | None = None  # the token, in a transaction that an atomic handler began

    @property
    def refused(self) -> bool:
        return self.state is None and not (self.busy or self.newer)


def finish_parameters(worker: UUID, endings: Sequence[Ending]) -> Mapping[str, Any]:
    """Return the parameters of FINISH; an atomic handler uses it on its own connection, too."""
    tokens = [str(ending.token) for ending in endings]
    rows = (ending.as_json(token) for ending, token in zip(endings, tokens, strict=True))
    return {
        "input": f"[{','.join(rows)}]",
        "ids": array(ending.id for ending in endings),
        "tokens": array(tokens),
        "worker": worker,
    }


async def finish(connection: Connection, worker: UUID, endings: Sequence[Ending]) -> list[Written]:
    """Write how these claims ended, in one statement. A locked row does not hold up the others."""
    cursor = connection.cursor(row_factory=args_row(Written))
    await cursor.execute(_SHORT_FINISH, finish_parameters(worker, endings))
    return await cursor.fetchall()


# No row has this token any more: an earlier copy of the statement was executed, or the leader wrote
# LOST. The job's state is the result of this attempt unless another one has begun since.
LATE = """
WITH input AS (
    UPDATE jobqueue_attempt a SET
        late_outcome = CASE WHEN a.outcome = 'LOST' THEN t.outcome ELSE a.late_outcome END
    FROM json_to_recordset(%(input)s::json) AS t(token uuid, outcome text)
    WHERE a.token = ANY(%(tokens)s::uuid[]) AND a.token = t.token
    RETURNING a.token, a.outcome, a.recorded_by, a.job_id, a.number
)
SELECT input.token, input.outcome, input.recorded_by, (
    SELECT j.state FROM jobqueue_job j
    WHERE j.id = input.job_id AND j.attempts = input.number AND j.state <> 'RUNNING'
) FROM input
"""


@dataclass(frozen=True, slots=True)
class Stands:
    """The history's record of a token: how its attempt ended, who recorded it (the holder or the
    leader), and the job's state, if it still follows from that."""

    token: UUID
    outcome: str
    recorded_by: str
    state: str | None


async def late(connection: Connection, endings: Sequence[Ending]) -> dict[UUID, Stands]:
    """Add to the history what a refused worker wanted to write, and return what it says about each
    token; tokens that nobody concluded are absent."""
    rows = [{"token": str(e.token), "outcome": e.outcome or ""} for e in endings]
    cursor = connection.cursor(row_factory=args_row(Stands))
    await cursor.execute(
        LATE, {"input": json.dumps(rows), "tokens": [ending.token for ending in endings]}
    )
    return {row.token: row for row in await cursor.fetchall()}


PROGRESS = """
WITH input AS (
    SELECT * FROM json_to_recordset(%(input)s::json) AS t(id bigint, token uuid, progress json)
), locked AS MATERIALIZED (
    SELECT j.id, j.lease_token FROM jobqueue_job j
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.lease_token = ANY(%(tokens)s::uuid[])
    ORDER BY j.id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE jobqueue_job j SET progress = t.progress::jsonb
FROM input t JOIN locked m ON m.id = t.id AND m.lease_token = t.token
WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = m.id AND j.lease_token = m.lease_token
RETURNING j.lease_token
"""


async def progress(
    connection: Connection, reports: Sequence[tuple[int, UUID, str]]
) -> frozenset[UUID]:
    """Store the latest progress (JSON text) of these claims; return the tokens that took it."""
    rows = ",".join(
        f'{{"id": {id}, "token": "{token}", "progress": {text}}}' for id, token, text in reports
    )
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        PROGRESS,
        {
            "input": f"[{rows}]",
            "ids": [id for id, _, _ in reports],
            "tokens": [token for _, token, _ in reports],
        },
    )
    return frozenset(token for (token,) in await cursor.fetchall())
