"""Reclaim, expire and prune, as statements."""

import asyncio
import contextlib
from uuid import uuid4

import psycopg
import pytest

from jobqueue.operations import sql
from jobqueue.states import NOTES, Outcome
from jobqueue.store import claims, due_work, finish, history_pruning, reclaims, sweeps
from jobqueue.store.batches import in_batch
from jobqueue.store.error_classes import is_transient
from tests.rows import add_job, add_running, add_worker, ago, ahead, history, insert, job_row, one
from tests.waiting import until


async def reclaim(connection, delay=0.0, limit=100):
    rows = await reclaims.lapsed(connection, limit)
    verdicts = [reclaims.Verdict(row.id, row.token, delay) for row in rows]
    return await reclaims.reclaim(connection, verdicts, "leader")


@contextlib.asynccontextmanager
async def locked(connection, job):
    """Somebody else's open transaction on a row."""
    async with connection.transaction():
        await connection.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [job])
        yield


@pytest.mark.spec("S109", "S183")
async def test_a_lapsed_claim_is_ready_again_with_a_counted_lost_attempt(connection):
    worker = uuid4()
    job, token = await add_running(connection, worker=worker, priority=7, attempts=2, failures=1)
    before = await job_row(connection, job)
    [swept] = await reclaim(connection)
    row = await job_row(connection, job)
    assert (swept.state, row["state"], row["reason"]) == ("READY", "READY", "retry")
    assert (row["attempts"], row["failures"]) == (3, 2)
    assert (row["priority"], row["run_at"]) == (7, before["run_at"])
    assert row["worker"] is None
    [attempt] = await history(connection, job)
    assert (attempt["token"], attempt["number"], attempt["outcome"]) == (token, 3, "LOST")
    assert (attempt["recorded_by"], attempt["worker"]) == ("leader", worker)
    assert attempt["error_class"] == "jobqueue.exceptions.WorkerLost"
    assert row["last_error"].startswith("jobqueue.exceptions.WorkerLost: ")


@pytest.mark.spec("S109")
async def test_a_lapsed_claim_with_a_backoff_waits_that_long(connection):
    job, _ = await add_running(connection)
    [swept] = await reclaim(connection, delay=30)
    assert swept.state == "SCHEDULED"
    wait = "SELECT EXTRACT(EPOCH FROM run_at - clock_timestamp()) FROM jobqueue_job"
    assert 20 < await one(connection, wait) <= 30
    assert (await job_row(connection, job))["state"] == "SCHEDULED"


@pytest.mark.spec("S109")
async def test_a_lapsed_claim_whose_budget_is_spent_is_dead(connection):
    job, _ = await add_running(connection, attempts=2, failures=2, max_attempts=3)
    [swept] = await reclaim(connection, delay=5)
    row = await job_row(connection, job)
    assert (swept.state, row["state"], row["reason"]) == ("DEAD", "DEAD", "worker lost")
    assert row["finished_at"] is not None


@pytest.mark.spec("S109")
async def test_a_stored_cancel_turns_every_reclaim_into_cancelled(connection):
    job, _ = await add_running(connection, cancel_requested_at=ago(1), max_attempts=1)
    await reclaim(connection)
    row = await job_row(connection, job)
    assert (row["state"], row["reason"]) == ("CANCELLED", "cancelled after its worker was lost")
    assert [attempt["outcome"] for attempt in await history(connection, job)] == ["LOST"]


async def test_a_job_that_would_start_after_its_deadline_is_expired_instead(connection):
    job, _ = await add_running(connection, expires_at=ahead(10))
    await reclaim(connection, delay=60)
    row = await job_row(connection, job)
    assert (row["state"], row["reason"]) == ("DEAD", "expired")


@pytest.mark.spec("S183", "D17")
async def test_a_valid_lease_is_left_alone(connection):
    await add_running(connection, lease=ahead(30))
    assert await reclaim(connection) == []


@pytest.mark.spec("S109")
async def test_the_claims_of_a_certified_dead_worker_are_reclaimed_before_their_lease_ends(
    connection,
):
    dead, alive = await add_worker(connection, died_at=ago(0)), await add_worker(connection)
    mine, _ = await add_running(connection, worker=dead, lease=ahead(30))
    await add_running(connection, worker=alive, lease=ahead(30))
    assert [swept.id for swept in await reclaim(connection)] == [mine]
    assert "certified" in (await job_row(connection, mine))["last_error"]


async def test_a_claim_of_the_dead_that_executes_after_the_certificate_is_reclaimed_too(
    connection,
):
    dead = await add_worker(connection, died_at=ago(5))
    job = await add_job(connection)
    assert await claims.claim(connection, "default", dead, [uuid4()], 30)
    assert [swept.id for swept in await reclaim(connection)] == [job]


@pytest.mark.spec("S109")
async def test_a_renewal_between_the_look_and_the_reclaim_wins(connection):
    await add_running(connection)
    rows = await reclaims.lapsed(connection, 10)
    await connection.execute("UPDATE jobqueue_job SET lease_expires_at = now() + interval '9 s'")
    verdicts = [reclaims.Verdict(row.id, row.token, 0) for row in rows]
    assert await reclaims.reclaim(connection, verdicts, "leader") == []


@pytest.mark.spec("S109")
async def test_a_locked_row_is_skipped_and_its_neighbour_reclaimed(connection, connect):
    held, _ = await add_running(connection)
    free, _ = await add_running(connection)
    async with locked(await connect(), held):
        assert [swept.id for swept in await reclaim(connection, limit=1)] == [free]
    assert [swept.id for swept in await reclaim(connection)] == [held]


async def test_a_finish_after_the_reclaim_finds_no_token(connection):
    job, token = await add_running(connection)
    await reclaim(connection)
    ending = finish.Ending(id=job, token=token, outcome=Outcome.SUCCEEDED, result="1")
    [written] = await finish.finish(connection, uuid4(), [ending])
    assert written.refused
    assert (await job_row(connection, job))["state"] == "READY"


async def test_a_token_that_stands_in_the_history_already_does_not_stop_the_reclaim(connection):
    job, token = await add_running(connection)
    other, _ = await add_running(connection)
    taken = {
        "token": token,
        "job_id": job,
        "number": 1,
        "outcome": "LOST",
        "started_at": ago(1),
        "finished_at": ago(0),
    }
    await insert(connection, "jobqueue_attempt", "token", taken)
    assert {swept.id for swept in await reclaim(connection)} == {job, other}


@pytest.mark.spec("S177")
async def test_two_leaders_reclaiming_at_once_count_one_loss(connection, connect):
    jobs = [(await add_running(connection))[0] for _ in range(20)]
    swept = await asyncio.gather(reclaim(await connect()), reclaim(await connect()))
    assert sorted(job.id for part in swept for job in part) == sorted(jobs)
    for job in jobs:
        assert len(await history(connection, job)) == 1


async def expire(connection, limit=100, unknown=60.0):
    ids = await sweeps.expirable(connection, limit, unknown)
    return await sweeps.expire(connection, ids, unknown, "leader")


@pytest.mark.spec("S184")
@pytest.mark.parametrize("state", ["SCHEDULED", "READY", "BLOCKED"])
async def test_a_waiting_job_past_its_deadline_is_dead_without_an_attempt(connection, state):
    job = await add_job(connection, state=state, expires_at=ago(1))
    await add_job(connection, state=state, expires_at=ahead(60))
    assert [swept.id for swept in await expire(connection)] == [job]
    row = await job_row(connection, job)
    assert (row["state"], row["reason"], row["attempts"]) == ("DEAD", "expired", 0)


@pytest.mark.spec("S184")
async def test_a_running_job_is_not_expired(connection):
    await add_running(connection, expires_at=ago(1), lease=ahead(30))
    assert await expire(connection) == []


async def test_a_parked_job_is_dead_after_its_time_and_not_before(connection):
    old = await add_job(connection, state="SCHEDULED", parked_at=ago(61), run_at=ahead(5))
    await add_job(connection, state="SCHEDULED", parked_at=ago(50), run_at=ahead(5))
    assert [swept.id for swept in await expire(connection)] == [old]
    assert (await job_row(connection, old))["reason"] == "unknown task"


@pytest.mark.spec("S179", "A18")
async def test_a_batch_is_no_larger_than_its_limit(connection):
    for _ in range(5):
        await add_job(connection, expires_at=ago(1))
    assert len(await expire(connection, limit=2)) == 2
    assert len(await expire(connection, limit=10)) == 3


async def prune(connection, state="SUCCEEDED", age=60.0, limit=100):
    ids = await sweeps.prunable(connection, state, age, limit)
    return await sweeps.prune(connection, ids, state, age)


@pytest.mark.spec("S191")
async def test_old_final_jobs_go_with_their_attempts(connection):
    old, _ = await add_running(connection, max_attempts=1)
    await reclaim(connection)
    await connection.execute(
        "UPDATE jobqueue_job SET finished_at = clock_timestamp() - interval '61 s'"
    )
    young = await add_job(connection, state="DEAD", finished_at=ago(59))
    other = await add_job(connection, state="SUCCEEDED", finished_at=ago(61))
    assert await prune(connection, "DEAD") == 1
    ids = "SELECT array_agg(id ORDER BY id) FROM jobqueue_job"
    assert await one(connection, ids) == [young, other]
    assert await history(connection, old) == []


@pytest.mark.spec("S191", "S177", "D95")
async def test_two_prunes_at_once_are_harmless(connection, connect):
    for _ in range(30):
        await add_job(connection, state="SUCCEEDED", finished_at=ago(61))
    gone = await asyncio.gather(prune(await connect()), prune(await connect()))
    assert sum(gone) == 30


async def test_a_job_that_was_retried_between_pick_and_delete_stays(connection):
    job = await add_job(connection, state="DEAD", finished_at=ago(61))
    ids = await sweeps.prunable(connection, "DEAD", 60, 10)
    await connection.execute("UPDATE jobqueue_job SET state = 'READY', finished_at = NULL")
    assert await sweeps.prune(connection, ids, "DEAD", 60) == 0
    assert (await job_row(connection, job))["state"] == "READY"


@pytest.mark.spec("S179")
async def test_a_batch_runs_under_a_timeout_of_the_server_that_ends_with_it(connection):
    async def slow(connection):
        await connection.execute("SELECT pg_sleep(20)")

    with pytest.raises(psycopg.errors.QueryCanceled):
        await in_batch(connection, 0.05, slow)
    assert await one(connection, "SHOW statement_timeout") == "0"


@pytest.mark.spec("S179", "S177")
async def test_a_leader_that_freezes_within_a_batch_gives_its_rows_back(connection, connect):
    job, thawed = await add_job(connection), asyncio.Event()

    async def freeze(frozen):
        await frozen.execute("SELECT FROM jobqueue_job FOR UPDATE")
        await thawed.wait()
        await frozen.execute("UPDATE jobqueue_job SET priority = 1")

    batch = asyncio.ensure_future(in_batch(await connect(), 0.3, freeze))
    taken = "SELECT count(*) FROM (SELECT FROM jobqueue_job FOR UPDATE SKIP LOCKED) AS free"
    await until(lambda: is_zero(connection, taken))
    await until(lambda: one(connection, taken))
    thawed.set()
    with pytest.raises(psycopg.Error) as ended:
        await batch
    assert is_transient(ended.value)
    assert (await job_row(connection, job))["priority"] == 0


async def is_zero(connection, statement):
    return await one(connection, statement) == 0


@pytest.mark.spec("S193", "D96")
async def test_rows_of_workers_long_silent_are_forgotten_but_never_ones_own(connection):
    me = await add_worker(connection, last_seen_at=ago(100))
    await add_worker(connection, last_seen_at=ago(100))
    young = await add_worker(connection, last_seen_at=ago(10))
    assert await history_pruning.forget_workers(connection, me, 60, 100) == 1
    ids = await one(connection, "SELECT array_agg(id) FROM jobqueue_worker")
    assert set(ids) == {me, young}


async def add_event(connection, kind, job=None, at=None):
    given = {"kind": kind, "job": job} | ({} if at is None else {"at": at})
    return await insert(connection, "jobqueue_jobevent", "id", given)


async def forget_events(connection, age, limit=100):
    """One whole pass, as the leader's step makes it."""
    last, rounds = 0, 0
    while last is not None:
        last = await history_pruning.forget_events(connection, last, age, limit)
        rounds += 1
    return rounds


EVENTS = "SELECT COALESCE(array_agg(id ORDER BY id), '{}') FROM jobqueue_jobevent"


@pytest.mark.spec("S191")
async def test_notes_go_with_their_job_and_acts_of_people_when_their_time_is_over(connection):
    job, gone = await add_job(connection, state="DEAD", finished_at=ago(9**9)), 10**9
    kept = [await add_event(connection, kind, job, ago(1000)) for kind in NOTES]
    for kind in NOTES:
        await add_event(connection, kind, gone)
    kept += [await add_event(connection, kind, gone, ago(59)) for kind in ("cancel", "delete")]
    kept += [await add_event(connection, "pause", at=ago(59))]
    for act in (("retry", job, ago(61)), ("cancel", gone, ago(61)), ("pause", None, ago(61))):
        await add_event(connection, *act)
    assert await forget_events(connection, 60.0, limit=2) > 3
    assert await one(connection, EVENTS) == kept


async def leader_prunes(connection):
    return await prune(connection, "DEAD")


async def operator_prunes(connection):
    given = {"state": "DEAD", "age": 60.0, "limit": 100}
    (count,) = await (await connection.execute(sql.PRUNE, given)).fetchone()
    return count


async def operator_deletes(connection):
    ids = await one(connection, "SELECT array_agg(id) FROM jobqueue_job WHERE state = 'DEAD'")
    given = {"ids": ids, "by": "ann", "note": "", "kind": "delete"}
    await connection.execute(sql.DELETE, given)
    await connection.execute("DELETE FROM jobqueue_jobevent WHERE kind = 'delete'")  # its own act
    return len(ids)


@pytest.mark.spec("S191")
@pytest.mark.parametrize("delete", [leader_prunes, operator_prunes, operator_deletes])
async def test_whoever_deletes_a_job_the_same_rows_are_left_after_the_leader_s_pass(
    connection, delete
):
    other = await add_job(connection, state="SUCCEEDED", finished_at=ago(9))
    jobs = [(await add_running(connection, max_attempts=1))[0] for _ in range(2)]
    await reclaim(connection)  # each has an attempt and a note of the leader now
    await connection.execute("UPDATE jobqueue_job SET finished_at = now() - interval '61 s'")
    acts = [await add_event(connection, "retry", job) for job in (*jobs, other)]
    acts += [await add_event(connection, "expire", other)]
    assert await delete(connection) == 2
    await forget_events(connection, 60.0)
    assert await one(connection, "SELECT array_agg(id) FROM jobqueue_job") == [other]
    assert await one(connection, "SELECT count(*) FROM jobqueue_attempt") == 0
    assert await one(connection, EVENTS) == acts


async def test_acts_of_people_without_an_end_stay(connection):
    act = await add_event(connection, "cancel", 10**9, ago(9**8))
    await forget_events(connection, None)
    assert await one(connection, EVENTS) == [act]


RETENTION = {"SUCCEEDED": 60.0}


async def test_the_look_of_an_idle_queue_finds_nothing_to_do(connection):
    await add_running(connection, lease=ahead(30), expires_at=ahead(1))
    await add_job(connection, state="SUCCEEDED", finished_at=ago(1))
    await add_job(connection)
    look = await due_work.find(connection, 60, RETENTION)
    assert (look.next_due, look.reclaim, look.expire, look.prune) == (None, False, False, False)


async def test_the_look_finds_each_kind_of_work(connection):
    await add_running(connection)
    assert (await due_work.find(connection, 60, RETENTION)).reclaim
    await add_job(connection, expires_at=ago(1))
    assert (await due_work.find(connection, 60, RETENTION)).expire
    await add_job(connection, state="SUCCEEDED", finished_at=ago(61))
    assert (await due_work.find(connection, 60, RETENTION)).prune
    await add_job(connection, state="SCHEDULED", run_at=ahead(20))
    look = await due_work.find(connection, 60, RETENTION)
    assert look.next_due is not None
    assert 15 < look.next_due - look.now <= 20
