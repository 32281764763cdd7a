"""The one INSERT of a job, for whoever enqueues: requests, handlers and the leader's cron."""

INSERT = """
INSERT INTO jobqueue_job
    (task, args, kwargs, signature, queue, backend, priority, options, state, run_at, expires_at,
     max_attempts, parent, traceparent, enqueued_at)
SELECT %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb, %(signature)s, %(queue)s, %(backend)s,
       %(priority)s, %(options)s::jsonb,
       CASE WHEN %(run_after)s::timestamptz > t.now THEN 'SCHEDULED' ELSE 'READY' END,
       GREATEST(%(run_after)s::timestamptz, t.now),
       GREATEST(%(run_after)s::timestamptz, t.now) + %(expires)s * interval '1 second',
       %(max_attempts)s, %(parent)s, %(traceparent)s, t.now
FROM (SELECT clock_timestamp() AS now) t
RETURNING id, state, run_at, enqueued_at
"""
