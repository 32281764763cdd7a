"""Fills the queue's tables with a long history, quickly: `python benchmarks/fill.py [ROWS]`.

Deletes everything first. Point DJANGO_SETTINGS_MODULE and DATABASE_URL at a database of its own.
"""

import os
import sys
import time

import django
from django.db import connection

FILL = """
INSERT INTO jobqueue_job (task, args, kwargs, queue, priority, state, reason, run_at, attempts,
    failures, max_attempts, last_error, worker, lease_token, lease_expires_at, claimed_at,
    enqueued_at, started_at, finished_at)
SELECT CASE WHEN n %% 1000 = 0 THEN 'shop.tasks.rare' ELSE 'shop.tasks.task' || n %% 20 END,
    jsonb_build_array(n), jsonb_build_object('order', n, 'mail', 'user' || n || '@example.org'),
    (ARRAY['default', 'mail', 'imports', 'reports'])[1 + (n %% 4)], n %% 5,
    s.state, CASE WHEN s.state = 'DEAD' THEN 'attempts spent' ELSE '' END,
    CASE WHEN s.state = 'SCHEDULED' THEN now() + n %% 86400 * interval '1 second' ELSE s.at END,
    CASE s.state WHEN 'SUCCEEDED' THEN 1 WHEN 'RUNNING' THEN 1 WHEN 'DEAD' THEN 5 ELSE n %% 2 END,
    CASE WHEN s.state = 'DEAD' THEN 5 WHEN s.state = 'SCHEDULED' THEN n %% 2 ELSE 0 END, 5,
    CASE WHEN s.state = 'DEAD' THEN 'ValueError: order ' || n || ' is closed' ELSE '' END,
    CASE WHEN s.state = 'RUNNING' THEN gen_random_uuid() END,
    CASE WHEN s.state = 'RUNNING' THEN gen_random_uuid() END,
    CASE WHEN s.state = 'RUNNING' THEN now() + interval '1 day' END,
    CASE WHEN s.state = 'RUNNING' THEN now() END,
    s.at, CASE WHEN s.state NOT IN ('SCHEDULED', 'READY') THEN s.at + interval '1 second' END,
    CASE WHEN s.state IN ('SUCCEEDED', 'DEAD', 'CANCELLED') THEN s.at + interval '2 seconds' END
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
CROSS JOIN LATERAL (SELECT
    CASE WHEN n %% 100 < 88 THEN 'SUCCEEDED' WHEN n %% 100 < 92 THEN 'DEAD'
        WHEN n %% 100 < 93 THEN 'CANCELLED' WHEN n %% 100 < 96 THEN 'SCHEDULED'
        WHEN n %% 10000 = 9999 THEN 'RUNNING' ELSE 'READY' END AS state,
    now() - (%(rows)s - n) * interval '0.12 seconds' AS at) s
"""
ATTEMPTS = """
INSERT INTO jobqueue_attempt (token, job_id, number, worker, outcome, started_at, finished_at,
    error_class, error_message, traceback, recorded_by)
SELECT gen_random_uuid(), id, 1, gen_random_uuid(),
    CASE WHEN state = 'DEAD' THEN 'FAILED' ELSE 'SUCCEEDED' END, started_at, finished_at,
    CASE WHEN state = 'DEAD' THEN 'ValueError' ELSE '' END, '', '', 'holder'
FROM jobqueue_job WHERE state IN ('SUCCEEDED', 'DEAD') AND id %% 5 = 0
"""
# Eight days of figures, as many as the leader keeps, and two hundred stops of workers.
MINUTES = """
INSERT INTO jobqueue_minute (at, queue, succeeded, failed, wait_p50, wait_p95)
SELECT date_trunc('minute', now()) - n * interval '1 minute', queue, n %% 300, n %% 7, 0.01, 0.2
FROM generate_series(1, 11520) n,
    unnest(ARRAY['', 'default', 'mail', 'imports', 'reports']) AS queue
"""
WORKERS = """
INSERT INTO jobqueue_worker (id, name, pid, queues, concurrency, phase, last_seen_at, stop_report)
SELECT gen_random_uuid(), 'web-' || n, n, '["default", "mail"]', 10,
    CASE WHEN n %% 10 = 0 THEN 'RUNNING' ELSE 'STOPPED' END, now(),
    CASE WHEN n %% 10 = 0 THEN NULL ELSE '{"completed": 412, "reason": "signal"}'::jsonb END
FROM generate_series(1, 200) n
"""
SCHEDULES = """
INSERT INTO jobqueue_schedule (name, task, cron, timezone)
SELECT 'schedule ' || n, 'shop.tasks.task1', n %% 60 || ' 3 * * *', 'Europe/Berlin'
FROM generate_series(1, 50) n
"""
BATCH = 250_000


def main(rows: int) -> None:
    start = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE jobqueue_job, jobqueue_attempt, jobqueue_jobevent, jobqueue_minute,"
            " jobqueue_worker, jobqueue_schedule CASCADE"
        )
        for first in range(1, rows + 1, BATCH):
            last = min(first + BATCH - 1, rows)
            cursor.execute(FILL, {"first": first, "last": last, "rows": rows})
            print(f"{last:,} rows, {time.monotonic() - start:.0f} s", flush=True)
        for statement in (ATTEMPTS, MINUTES, WORKERS, SCHEDULES):
            cursor.execute(statement, {})
        cursor.execute("VACUUM (ANALYZE) jobqueue_job")
        cursor.execute("VACUUM (ANALYZE) jobqueue_attempt")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
