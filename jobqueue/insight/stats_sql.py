"""The statements behind `jobqueue.insight.stats`: each stops at a limit or walks along an index."""

from jobqueue.versions import CLAIMABLE, NEWER, READY_APART, SCHEDULED_APART, TIMED

# In the order of an index, or a limited count may read the table until it has found enough.
COUNTS = f"""
SELECT clock_timestamp(),
    (SELECT GREATEST(reltuples, 0) FROM pg_class WHERE oid = 'jobqueue_job'::regclass),
    (SELECT json_object(most_common_vals::text::text[], most_common_freqs::text[])
        FROM pg_stats WHERE schemaname = (SELECT relnamespace::regnamespace::text FROM pg_class
                                          WHERE oid = 'jobqueue_job'::regclass)
        AND tablename = 'jobqueue_job' AND attname = 'state'),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE {TIMED} ORDER BY run_at LIMIT %(limit)s) t)
    + (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE {SCHEDULED_APART} ORDER BY parked_at LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE {CLAIMABLE} ORDER BY queue, priority DESC, run_at, id LIMIT %(limit)s) t)
    + (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE {READY_APART} ORDER BY suspect, priority DESC, run_at, id LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state = 'BLOCKED' ORDER BY id LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state = 'RUNNING' ORDER BY worker LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND state = 'SUCCEEDED'
        ORDER BY finished_at LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND state = 'DEAD'
        ORDER BY finished_at LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND state = 'CANCELLED'
        ORDER BY finished_at LIMIT %(limit)s) t),
    (SELECT count(*) FROM (SELECT FROM jobqueue_job
        WHERE state = 'SCHEDULED' AND failures > 0 ORDER BY run_at LIMIT %(limit)s) t)
"""

# Walks from one queue to the next by the index, and within it from one priority to the next: the
# first of each priority is its oldest. The limit of 100 queues is also what keeps the planner's
# estimate below the cost at which it would compile the statement, which takes longer than running.
QUEUES = f"""
WITH RECURSIVE ready_queue(name) AS (
    (SELECT queue FROM jobqueue_job WHERE {CLAIMABLE} ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM jobqueue_job WHERE {CLAIMABLE} AND queue > q.name
            ORDER BY queue LIMIT 1)
    FROM ready_queue q WHERE q.name IS NOT NULL
), apart AS (
    SELECT queue AS name, count(*) AS ready, min(run_at) AS run_at
    FROM (SELECT queue, run_at FROM jobqueue_job WHERE {READY_APART}
          ORDER BY suspect, priority DESC, run_at, id LIMIT %(limit)s) t
    GROUP BY queue
), running AS (
    SELECT queue AS name, count(*) AS running
    FROM (SELECT queue FROM jobqueue_job WHERE state = 'RUNNING' ORDER BY worker
          LIMIT %(limit)s) t
    GROUP BY queue
), scheduled AS (
    SELECT queue AS name, count(*) AS scheduled
    FROM ((SELECT queue FROM jobqueue_job WHERE {TIMED} ORDER BY run_at LIMIT %(sample)s)
          UNION ALL
          (SELECT queue FROM jobqueue_job WHERE {SCHEDULED_APART} ORDER BY parked_at
           LIMIT %(sample)s)) t
    GROUP BY queue
), alive AS MATERIALIZED (
    SELECT queues FROM jobqueue_worker
    WHERE phase = 'RUNNING' AND died_at IS NULL
      AND last_seen_at > clock_timestamp() - %(lease)s * interval '1 second'
    ORDER BY last_seen_at DESC LIMIT 1000
), served AS (
    SELECT name, count(*) AS workers
    FROM alive CROSS JOIN LATERAL jsonb_array_elements_text(queues) AS name
    WHERE left(name, 1) NOT IN ('*', '-')
    GROUP BY name
), every AS MATERIALIZED (
    SELECT name FROM (
        SELECT name FROM ready_queue WHERE name IS NOT NULL
        UNION SELECT name FROM apart UNION SELECT name FROM running UNION SELECT name FROM scheduled
        UNION SELECT name FROM served UNION SELECT name FROM jobqueue_queue
        UNION SELECT unnest(%(known)s::text[])
    ) u ORDER BY name LIMIT 100
)
SELECT e.name,
    (SELECT count(*) FROM (SELECT FROM jobqueue_job WHERE {CLAIMABLE} AND queue = e.name
                           ORDER BY priority DESC, run_at, id
                           LIMIT %(limit)s) t) + COALESCE(a.ready, 0),
    COALESCE(r.running, 0), COALESCE(s.scheduled, 0), EXTRACT(EPOCH FROM clock_timestamp() - LEAST((
        WITH RECURSIVE head(priority, run_at) AS (
            (SELECT priority, run_at FROM jobqueue_job WHERE {CLAIMABLE} AND queue = e.name
             ORDER BY priority DESC, run_at LIMIT 1)
            UNION ALL
            SELECT n.priority, n.run_at FROM head h CROSS JOIN LATERAL (
                SELECT priority, run_at FROM jobqueue_job
                WHERE {CLAIMABLE} AND queue = e.name AND priority < h.priority
                ORDER BY priority DESC, run_at LIMIT 1) n
        ) SELECT min(run_at) FROM head), a.run_at))::double precision,
    q.paused_at, COALESCE(q.paused_by, ''), COALESCE(w.workers, 0) + (
        SELECT count(*) FROM alive v WHERE v.queues @> '["*"]'
            AND NOT v.queues @> jsonb_build_array(e.name)
            AND NOT v.queues @> jsonb_build_array('-' || e.name)),
    (SELECT count(*) FROM scheduled) > 0
        AND (SELECT sum(scheduled) FROM scheduled) >= %(sample)s
FROM every e
LEFT JOIN apart a USING (name) LEFT JOIN running r USING (name) LEFT JOIN scheduled s USING (name)
LEFT JOIN jobqueue_queue q USING (name) LEFT JOIN served w USING (name)
ORDER BY e.name
"""

# Final jobs by the index, one probe a task; of the others those that come first. Each part is read
# in the order of its index: without one, statistics of a moment when much ran mean a whole table.
TASKS = f"""
WITH RECURSIVE known(task) AS (
    (SELECT task FROM jobqueue_job
     WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') ORDER BY task LIMIT 1)
    UNION ALL
    SELECT (SELECT task FROM jobqueue_job
            WHERE state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') AND task > k.task
            ORDER BY task LIMIT 1)
    FROM known k WHERE k.task IS NOT NULL
), waiting AS (
    (SELECT task FROM jobqueue_job WHERE {CLAIMABLE}
     ORDER BY queue, priority DESC, run_at, id LIMIT %(waiting)s)
    UNION ALL
    (SELECT task FROM jobqueue_job WHERE {READY_APART}
     ORDER BY suspect, priority DESC, run_at, id LIMIT %(waiting)s)
    UNION ALL
    (SELECT task FROM jobqueue_job WHERE {TIMED} ORDER BY run_at LIMIT %(waiting)s)
    UNION ALL
    (SELECT task FROM jobqueue_job WHERE {SCHEDULED_APART} ORDER BY parked_at LIMIT %(waiting)s)
    UNION ALL
    (SELECT task FROM jobqueue_job WHERE state = 'BLOCKED' ORDER BY id LIMIT %(waiting)s)
    UNION ALL
    (SELECT task FROM jobqueue_job WHERE state = 'RUNNING' ORDER BY worker LIMIT %(waiting)s)
)
(SELECT task FROM known WHERE task IS NOT NULL LIMIT 1000) UNION SELECT task FROM waiting ORDER BY 1
"""

NEWER_WAITING = f"""
SELECT count(*), max(needs) FROM (
    (SELECT needs FROM jobqueue_job WHERE {READY_APART} AND {NEWER}
     ORDER BY suspect, priority DESC, run_at, id LIMIT %(limit)s)
    UNION ALL
    (SELECT needs FROM jobqueue_job WHERE {SCHEDULED_APART} AND {NEWER}
     ORDER BY parked_at LIMIT %(limit)s)
) t
"""

USED = """
SELECT worker, count(*)::int FROM jobqueue_job
WHERE state = 'RUNNING' AND worker = ANY(%(workers)s::uuid[])
GROUP BY worker
"""

DAY = """
SELECT date_bin('15 minutes', at, '2000-01-01'::timestamptz), sum(succeeded)::int, sum(dead)::int,
    sum(cancelled)::int, sum(failed)::int, max(wait_p50), max(wait_p95)
FROM jobqueue_minute
WHERE queue = '' AND at >= %(since)s
GROUP BY 1 ORDER BY 1
"""
