"""The one INSERT of a job, for whoever enqueues: requests, handlers and the leader's cron."""

# One moment for the whole row, and a fresh one: a long transaction's own began long ago.
INSERT = """
INSERT INTO jobqueue_job
    (task, args, kwargs, args_bytes, signature, queue, backend, priority, options, state, run_at,
     expires_at, max_attempts, parent, traceparent, enqueued_at)
VALUES (%(task)s, %(args)s::jsonb, %(kwargs)s::jsonb, %(args_bytes)s, %(signature)s, %(queue)s,
    %(backend)s, %(priority)s, %(options)s::jsonb,
    CASE WHEN %(run_after)s::timestamptz > statement_timestamp() THEN 'SCHEDULED' ELSE 'READY' END,
    GREATEST(%(run_after)s::timestamptz, statement_timestamp()),
    GREATEST(%(run_after)s::timestamptz, statement_timestamp())
        + %(expires)s * interval '1 second',
    %(max_attempts)s, %(parent)s, %(traceparent)s, statement_timestamp())
RETURNING id, state, run_at, enqueued_at
"""
