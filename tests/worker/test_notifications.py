"""Every kind of notification, sent to a whole worker: each has its effect."""

import json
from math import inf
from uuid import uuid4

import pytest

from jobqueue.models import Job
from tests.sample_tasks import send as send_task
from tests.worker import jobs
from tests.worker.running import Running, sql

NEVER = 600.0  # seconds: neither a poll nor a beat finds what a notification announces
ADD_JOB = "INSERT INTO jobqueue_job (task, args) VALUES (%s, '[1]') RETURNING id"
ADD_SCHEDULED = (
    "INSERT INTO jobqueue_job (task, args, state, run_at) VALUES (%s, '[1]', 'SCHEDULED',"
    " clock_timestamp() + interval '0.5 s') RETURNING id, extract(epoch FROM run_at)::float"
)
ADD_RUNNING = (
    "INSERT INTO jobqueue_job (task, args, state, worker, lease_token, lease_expires_at,"
    " claimed_at, started_at) VALUES (%s, '[1]', 'RUNNING', %s, %s, clock_timestamp() +"
    " interval '1 hour', clock_timestamp(), clock_timestamp()) RETURNING id"
)
ADD_DEAD_WORKER = (
    "INSERT INTO jobqueue_worker (id, pid, phase, died_at) VALUES (%s, 1, 'RUNNING',"
    " clock_timestamp())"
)
ELECT_ANOTHER = (
    "INSERT INTO jobqueue_leaderlease (name, holder, term, acquired_at, expires_at) VALUES"
    " ('maintenance', %s, 1, clock_timestamp(), clock_timestamp() + interval '1 hour')"
    " ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, term = 1,"
    " acquired_at = EXCLUDED.acquired_at, expires_at = EXCLUDED.expires_at"
)
# Who leads must be alive, or nobody believes its lease.
ADD_LIVING_WORKER = "INSERT INTO jobqueue_worker (id, pid, phase) VALUES (%s, 1, 'RUNNING')"
RESIGN = "UPDATE jobqueue_leaderlease SET holder = NULL, acquired_at = NULL, expires_at = NULL"


def notify(kind, **facts):
    sql("SELECT pg_notify('jobqueue', %s)", json.dumps({"kind": kind, **facts}))


def is_in(job, state):
    return lambda: Job.objects.filter(pk=job, state=state).exists()


@pytest.fixture
def running(parameters, shared):
    """A worker that follows another leader and finds nothing by itself any more."""
    other = uuid4()
    sql(ADD_LIVING_WORKER, other)
    sql(ELECT_ANOTHER, other)
    given = {
        "poll_seconds": NEVER,
        "heartbeat_seconds": NEVER,
        "lease_seconds": 10 * NEVER,
        "leader_lease_seconds": 10 * NEVER,  # an hour is no longer than it can be
    }
    with Running(parameters, lead=True, **given) as running:
        try:
            running.wait(lambda: running.worker.components.listener.is_proven)
            yield running
        finally:
            for event in shared.events.values():
                event.set()


def is_leading(running):
    return running.on_loop(lambda: running.worker.components.leader.is_leading)


def leading(running):
    """Have this worker lead; its own looks at what there is to do come never again."""
    leader = running.worker.components.leader
    sql(RESIGN)
    notify("leader")
    running.wait(lambda: is_leading(running))
    look = leader._maintenance.steps["find work"]
    running.wait(lambda: look.ran > -inf and leader.job_steps._epoch is not None)
    running.on_loop(setattr, look, "interval", inf)
    running.on_loop(setattr, look, "due", inf)


@pytest.mark.spec("S116", "S233")
@pytest.mark.parametrize("kind", ["ready", "resumed"])
@pytest.mark.parametrize("facts", [{}, {"queue": "default"}, {"queue": "default", "priority": 0}])
def test_ready_and_resumed_have_a_job_claimed(running, kind, facts):
    [[job]] = sql(ADD_JOB, send_task.module_path)
    notify(kind, **facts)
    running.wait(is_in(job, "SUCCEEDED"))


@pytest.mark.spec("S116")
@pytest.mark.parametrize("is_addressed", [True, False])
def test_cancel_stops_a_running_handler(running, shared, body, is_addressed):
    job = int(jobs.call.enqueue(body(lambda: shared.events["go"].wait(30))).id)
    running.state(job, "RUNNING")
    sql("UPDATE jobqueue_job SET cancel_requested_at = clock_timestamp() WHERE id = %s", job)
    notify("cancel", **({"worker": str(running.worker.identity.id)} if is_addressed else {}))
    # The row says RUNNING before the worker has heard of it.
    running.wait(lambda: (held := running.inflight(job)) and held.control.cancelled)
    shared.events["go"].set()


@pytest.mark.spec("S183", "S233")
def test_leader_has_a_follower_elected(running):
    assert not is_leading(running)
    leading(running)


@pytest.mark.spec("S183", "S233")
def test_scheduled_has_the_leader_promote_a_job_when_it_falls_due(running):
    leading(running)
    [[job, at]] = sql(ADD_SCHEDULED, send_task.module_path)
    notify("scheduled", at=at)
    running.wait(is_in(job, "SUCCEEDED"))


@pytest.mark.spec("S183", "S233")
def test_died_has_the_leader_reclaim_the_jobs_of_the_dead(running):
    """Their leases hold for another hour, and the leader does not look by itself."""
    leading(running)
    dead = uuid4()
    sql(ADD_DEAD_WORKER, dead)
    [[job]] = sql(ADD_RUNNING, "shop.receipt", dead, uuid4())
    notify("died", worker=str(dead))
    running.wait(lambda: not Job.objects.filter(pk=job, state="RUNNING").exists())
