"""The leader's statistics for the charts: one row per minute and queue."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

Connection = AsyncConnection[Any]

# The next unwritten minute, at most an hour back, once it has been over for 5 s (a
# transaction that stamped its end inside the minute may commit a little later). Every minute gets
# a row for all queues together, also when nothing happened, so that the next call goes on.
# One state at a time: a list of all three is no condition on the index's first column, and the
# whole of it would be read.
WRITE = """
WITH latest AS (
    SELECT max(at) AS at FROM jobqueue_minute
), next AS (
    SELECT GREATEST(
        COALESCE((SELECT at FROM latest) + interval '1 minute', t.newest),
        t.newest - interval '1 hour'
    ) AS at, t.newest
    FROM (
        SELECT date_trunc('minute', clock_timestamp() - interval '5 seconds')
            - interval '1 minute' AS newest
    ) t
), final AS MATERIALIZED (
    SELECT queue, state, attempts, started_at, run_at FROM jobqueue_job
    WHERE state = 'SUCCEEDED'
      AND finished_at >= (SELECT at FROM next)
      AND finished_at < (SELECT at FROM next) + interval '1 minute'
    UNION ALL
    SELECT queue, state, attempts, started_at, run_at FROM jobqueue_job
    WHERE state = 'DEAD'
      AND finished_at >= (SELECT at FROM next)
      AND finished_at < (SELECT at FROM next) + interval '1 minute'
    UNION ALL
    SELECT queue, state, attempts, started_at, run_at FROM jobqueue_job
    WHERE state = 'CANCELLED'
      AND finished_at >= (SELECT at FROM next)
      AND finished_at < (SELECT at FROM next) + interval '1 minute'
), ended AS MATERIALIZED (
    SELECT j.queue, j.state, CASE WHEN j.attempts = 1 AND j.state <> 'CANCELLED'
        THEN GREATEST(EXTRACT(EPOCH FROM j.started_at - j.run_at), 0)::double precision
        END AS wait
    FROM final j
), failures AS MATERIALIZED (
    SELECT j.queue FROM jobqueue_attempt a JOIN jobqueue_job j ON j.id = a.job_id
    WHERE a.outcome IN ('FAILED', 'TIMED_OUT', 'LOST')
      AND a.finished_at >= (SELECT at FROM next)
      AND a.finished_at < (SELECT at FROM next) + interval '1 minute'
), jobs AS (
    SELECT COALESCE(queue, '') AS queue,
        count(*) FILTER (WHERE state = 'SUCCEEDED') AS succeeded,
        count(*) FILTER (WHERE state = 'DEAD') AS dead,
        count(*) FILTER (WHERE state = 'CANCELLED') AS cancelled,
        percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY wait) AS waits
    FROM ended GROUP BY GROUPING SETS ((), (queue))
), failed AS (
    SELECT COALESCE(queue, '') AS queue, count(*) AS failed
    FROM failures GROUP BY GROUPING SETS ((), (queue))
), written AS (
    INSERT INTO jobqueue_minute
        (at, queue, succeeded, dead, cancelled, failed, wait_p50, wait_p95)
    SELECT n.at, queue, COALESCE(j.succeeded, 0), COALESCE(j.dead, 0), COALESCE(j.cancelled, 0),
        COALESCE(f.failed, 0), j.waits[1], j.waits[2]
    FROM next n CROSS JOIN (jobs j FULL JOIN failed f USING (queue))
    WHERE n.at <= n.newest
    ON CONFLICT DO NOTHING
), pruned AS (
    DELETE FROM jobqueue_minute
    WHERE at < (SELECT newest FROM next) - interval '8 days'
)
SELECT at < newest FROM next
"""


async def write(connection: Connection) -> bool:
    """Write the next finished minute, if there is one; return whether another one waits."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(WRITE)
    row = await cursor.fetchone()
    return row is not None and bool(row[0])
