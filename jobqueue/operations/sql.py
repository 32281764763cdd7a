"""The statements of the operator's verbs.

Every one locks its rows first, in id order, and decides from the locked row; answers one line for
each row that is there: id, the state before, whether it changed, queue, worker, why not.
"""
# ruff: noqa: S608  (constants joined to constants; every value is a parameter)

from jobqueue.versions import NEWER, OURS

LOCKED = f"""
WITH locked AS MATERIALIZED (
    SELECT id, state, queue, priority, worker, hold_until, {NEWER} AS newer FROM jobqueue_job
    WHERE id = ANY(%(ids)s::bigint[])
    ORDER BY id
    FOR NO KEY UPDATE
)"""
# The event is written from the rows that changed, in the same statement.
TAIL = """, event AS (
    INSERT INTO jobqueue_jobevent (job, queue, at, kind, actor, note)
    SELECT id, queue, clock_timestamp(), %(kind)s, %(by)s,
        trim(concat_ws(' ', note, %(note)s::text))
    FROM changed
)
SELECT a.id, a.state, c.id IS NOT NULL, COALESCE(c.queue, a.queue), a.worker,
    CASE WHEN l.newer THEN 'NEWER' ELSE a.why END
FROM answer a JOIN locked l ON l.id = a.id LEFT JOIN changed c ON c.id = a.id
"""

# A running job keeps its state: its worker, or whoever ends the attempt, acts on the request.
CANCEL = (
    LOCKED
    + """, answer AS (
    SELECT id, state, queue, worker,
        CASE WHEN state = 'RUNNING' THEN 'ASKED' ELSE state END AS why
    FROM locked
), changed AS (
    UPDATE jobqueue_job j SET
        state = CASE WHEN j.state = 'RUNNING' THEN j.state ELSE 'CANCELLED' END,
        reason = CASE WHEN j.state = 'RUNNING' THEN j.reason ELSE 'cancelled before start' END,
        finished_at = CASE WHEN j.state = 'RUNNING' THEN NULL ELSE clock_timestamp() END,
        cancel_requested_at = clock_timestamp(),
        cancel_requested_by = %(by)s,
        cancel_reason = %(note)s
    FROM locked l
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = l.id AND NOT l.newer
      AND (j.state IN ('SCHEDULED', 'READY', 'BLOCKED')
        OR j.state = 'RUNNING' AND j.cancel_requested_at IS NULL)
    RETURNING j.id, j.queue, NULL AS note
)"""
    + TAIL
)

# `hold_until` is in the future while the process that ran it last may still be running it.
RETRY = (
    LOCKED
    + """, answer AS (
    SELECT id, state, queue, worker, CASE
        WHEN state NOT IN ('DEAD', 'CANCELLED') THEN state
        WHEN hold_until > clock_timestamp() THEN 'HELD'
        ELSE 'LATER' END AS why
    FROM locked
), changed AS (
    UPDATE jobqueue_job j SET
        state = 'READY', reason = '', failures = 0, interruptions = 0, snoozes = 0, suspect = false,
        run_at = clock_timestamp(), expires_at = NULL, hold_until = NULL, parked_at = NULL,
        finished_at = NULL, result = NULL, progress = NULL,
        cancel_requested_at = NULL, cancel_requested_by = '', cancel_reason = ''
    FROM locked l
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = l.id AND NOT l.newer
      AND j.state IN ('DEAD', 'CANCELLED')
      AND (j.hold_until IS NULL OR j.hold_until <= clock_timestamp())
      AND (%(as_of)s::timestamptz IS NULL OR j.finished_at <= %(as_of)s)
    RETURNING j.id, j.queue, NULL AS note
)"""
    + TAIL
)

RUN_NOW = (
    LOCKED
    + """, answer AS (
    SELECT id, state, queue, worker,
        CASE WHEN state = 'SCHEDULED' THEN 'HELD' ELSE state END AS why
    FROM locked
), changed AS (
    UPDATE jobqueue_job j SET state = 'READY', run_at = clock_timestamp(), hold_until = NULL
    FROM locked l
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = l.id AND NOT l.newer
      AND j.state = 'SCHEDULED'
      AND (j.hold_until IS NULL OR j.hold_until <= clock_timestamp())
    RETURNING j.id, j.queue, NULL AS note
)"""
    + TAIL
)

REPRIORITISE = (
    LOCKED
    + """, answer AS (
    SELECT id, state, queue, worker,
        CASE WHEN state IN ('SCHEDULED', 'READY', 'BLOCKED') THEN 'SAME' ELSE state END AS why
    FROM locked
), changed AS (
    UPDATE jobqueue_job j SET priority = %(priority)s
    FROM locked l
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = l.id AND NOT l.newer
      AND j.state IN ('SCHEDULED', 'READY', 'BLOCKED') AND j.priority <> %(priority)s
    RETURNING j.id, j.queue, format('%%s to %%s', l.priority, j.priority) AS note
)"""
    + TAIL
)

MOVE = (
    LOCKED
    + """, answer AS (
    SELECT id, state, queue, worker,
        CASE WHEN state IN ('SCHEDULED', 'READY', 'BLOCKED') THEN 'SAME' ELSE state END AS why
    FROM locked
), changed AS (
    UPDATE jobqueue_job j SET queue = %(queue)s
    FROM locked l
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = l.id AND NOT l.newer
      AND j.state IN ('SCHEDULED', 'READY', 'BLOCKED') AND j.queue <> %(queue)s
    RETURNING j.id, j.queue, format('%%s to %%s', l.queue, j.queue) AS note
)"""
    + TAIL
)

DELETE = (
    LOCKED.replace("FOR NO KEY UPDATE", "FOR UPDATE")
    + """, answer AS (
    SELECT id, state, queue, worker, state AS why FROM locked
), changed AS (
    DELETE FROM jobqueue_job j USING locked l
    WHERE j.id = ANY(%(ids)s::bigint[]) AND j.id = l.id AND NOT l.newer
      AND j.state IN ('SUCCEEDED', 'DEAD', 'CANCELLED')
    RETURNING j.id, j.queue, format('%%s, %%s', j.task, j.state) AS note
), history AS (
    DELETE FROM jobqueue_attempt a USING changed c WHERE a.job_id = c.id
)"""
    + TAIL
)

# By an array of ids, like every statement on rows picked before: see store/claims.py.
PRUNE = f"""
WITH old AS MATERIALIZED (
    SELECT ARRAY(
        SELECT id FROM jobqueue_job
        WHERE state = %(state)s AND state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND {OURS}
          AND finished_at < clock_timestamp() - %(age)s * interval '1 second'
        ORDER BY finished_at LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS ids
), history AS (
    DELETE FROM jobqueue_attempt WHERE job_id = ANY((SELECT ids FROM old)::bigint[])
), deleted AS (
    DELETE FROM jobqueue_job WHERE id = ANY((SELECT ids FROM old)::bigint[]) RETURNING id
)
SELECT count(*) FROM deleted
"""

PAUSE = """
WITH changed AS (
    INSERT INTO jobqueue_queue AS q (name, paused_at, paused_by)
    VALUES (%(queue)s, clock_timestamp(), %(by)s)
    ON CONFLICT (name) DO UPDATE SET paused_at = clock_timestamp(), paused_by = %(by)s
    WHERE q.paused_at IS NULL
    RETURNING name
), event AS (
    INSERT INTO jobqueue_jobevent (queue, at, kind, actor, note)
    SELECT name, clock_timestamp(), 'pause', %(by)s, %(note)s FROM changed
)
SELECT name FROM changed
"""

RESUME = """
WITH changed AS (
    UPDATE jobqueue_queue SET paused_at = NULL, paused_by = ''
    WHERE name = %(queue)s AND paused_at IS NOT NULL
    RETURNING name
), event AS (
    INSERT INTO jobqueue_jobevent (queue, at, kind, actor, note)
    SELECT name, clock_timestamp(), 'resume', %(by)s, %(note)s FROM changed
)
SELECT name FROM changed
"""
