"""The heartbeat's statement: renewed, busy or lost; what else there is to hear."""

from uuid import uuid4

import pytest

from jobqueue.store import heartbeat
from jobqueue.store.notify import prove
from tests.rows import add_running, add_worker, ago, ahead, job_row, one


async def beat(connection, worker, held, **changes):
    given = {"lease": 30.0, "leader_lease": 15.0, "phase": "RUNNING", "wake": "notified", **changes}
    return await heartbeat.beat(
        connection, worker, [heartbeat.HeldLease(*pair) for pair in held], **given
    )


async def seconds_left(connection, job):
    left = "SELECT EXTRACT(EPOCH FROM lease_expires_at - clock_timestamp())::float8 "
    return await one(connection, f"{left} FROM jobqueue_job WHERE id = %s", job)


@pytest.mark.spec("S92", "S93", "S98")
async def test_what_a_beat_names_is_renewed_and_nothing_else_of_this_worker(connection):
    me = await add_worker(connection, last_seen_at=ago(60))
    known = await add_running(connection, worker=me)
    unknown = await add_running(connection, worker=me)
    answer = await beat(connection, me, [known])
    assert answer.renewed == {known[1]}
    assert not answer.busy
    assert await seconds_left(connection, known[0]) > 20
    assert await seconds_left(connection, unknown[0]) < 0
    seen = "SELECT clock_timestamp() - last_seen_at < '20 s' FROM jobqueue_worker"
    assert await one(connection, seen)


@pytest.mark.spec("S92", "S103")
async def test_a_claim_under_another_token_is_neither_renewed_nor_busy(connection):
    me = await add_worker(connection)
    job, _ = await add_running(connection, worker=me)
    answer = await beat(connection, me, [(job, uuid4())])
    assert not answer.renewed
    assert not answer.busy
    assert await seconds_left(connection, job) < 0


@pytest.mark.spec("S93", "S123", "D118")
async def test_a_locked_row_is_busy_and_delays_no_neighbour(connection, connect):
    me, other = await add_worker(connection), await connect()
    locked = await add_running(connection, worker=me)
    free = await add_running(connection, worker=me)
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [locked[0]])
        answer = await beat(connection, me, [locked, free])
    assert (answer.renewed, answer.busy) == ({free[1]}, {locked[1]})
    assert (await beat(connection, me, [locked])).renewed == {locked[1]}


@pytest.mark.spec("S93", "S123")
async def test_a_lock_on_the_worker_s_own_row_delays_no_renewal(connection, connect):
    me, other = await add_worker(connection), await connect()
    job = await add_running(connection, worker=me)
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_worker FOR UPDATE")
        answer = await beat(connection, me, [job])
    assert (answer.renewed, answer.registered) == ({job[1]}, True)


@pytest.mark.spec("S116", "S115")
async def test_cancel_requests_are_heard_by_token(connection):
    me = await add_worker(connection)
    asked = await add_running(connection, worker=me, cancel_requested_at=ago(1))
    other = await add_running(connection, worker=me)
    stale = (asked[0], uuid4())
    assert (await beat(connection, me, [asked, other])).cancelled == {asked[1]}
    assert not (await beat(connection, me, [stale])).cancelled


async def test_a_handler_that_does_not_end_is_marked_once(connection):
    me = await add_worker(connection)
    job, token = await add_running(connection, worker=me)
    await beat(connection, me, [(job, token, 7.5)])
    first = (await job_row(connection, job))["not_ending_since"]
    assert first is not None
    await beat(connection, me, [(job, token, 12.5)])
    await beat(connection, me, [(job, token, None)])
    assert (await job_row(connection, job))["not_ending_since"] == first


async def test_the_answer_shows_a_certified_death_and_a_missing_leader(connection):
    me = await add_worker(connection)
    stranger = await beat(connection, uuid4(), [])
    assert (stranger.registered, stranger.leader_vacant) == (False, True)
    await connection.execute("UPDATE jobqueue_worker SET died_at = now()")
    answer = await beat(connection, me, [])
    assert answer.died_at is not None


async def test_a_proof_reaches_the_channel_it_is_sent_to(connection, connect):
    listener = await connect()
    await listener.execute("LISTEN jobqueue_proof")
    await prove(connection, "jobqueue_proof", "abc")
    note = await anext(listener.notifies(timeout=10))
    assert note.payload == "abc"


@pytest.mark.spec("S98")
async def test_a_beat_with_nothing_held_renews_nothing(connection):
    me = await add_worker(connection)
    job, _ = await add_running(connection, worker=me, lease=ahead(5))
    await beat(connection, me, [])
    assert await seconds_left(connection, job) < 6
