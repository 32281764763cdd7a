"""READY rows become RUNNING, at most one for each token, and each for one worker."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest

from jobqueue.store import claims, server_process
from tests.rows import add_job, ago, ahead, insert, job_row, one

ME = uuid4()


def tokens(count):
    return [uuid4() for _ in range(count)]


async def claimed(connection, count=1, queue="default", lease=30.0):
    return await claims.claim(connection, queue, ME, tokens(count), lease)


@pytest.mark.spec("S36", "S92")
async def test_a_claim_leaves_holder_token_and_lease_in_the_row(connection):
    job = await add_job(connection, reason="retry")
    (claim,) = await claimed(connection, 5)
    row = await job_row(connection, job)
    assert (claim.id, claim.token) == (job, row["lease_token"])
    assert (row["state"], row["worker"], row["reason"]) == ("RUNNING", ME, "")
    left = "SELECT lease_expires_at - claimed_at <= '30 s' FROM jobqueue_job WHERE id = %s"
    assert await one(connection, left, job)
    assert (row["attempts"], row["failures"]) == (0, 0)  # charged when it ends


@pytest.mark.spec("S36")
async def test_the_more_urgent_then_the_earlier_due_then_the_older_comes_first(connection):
    late = await add_job(connection, run_at=ago(1))
    early = await add_job(connection, run_at=ago(9))
    urgent = await add_job(connection, run_at=ago(1), priority=3)
    minor = await add_job(connection, run_at=ago(99), priority=-1)
    order = [claim.id for claim in await claimed(connection, 10)]
    assert order == [urgent, early, late, minor]


@pytest.mark.spec("S37", "S38")
async def test_there_is_a_row_for_each_token_at_most(connection):
    for _ in range(5):
        await add_job(connection)
    given = tokens(3)
    rows = await claims.claim(connection, "default", ME, given, 30.0)
    assert [row.token for row in rows] == given
    assert await one(connection, "SELECT count(*) FROM jobqueue_job WHERE state = 'READY'") == 2


@pytest.mark.spec("S36", "S58", "S79")
async def test_what_waits_has_ended_is_expired_or_paused_is_not_claimed(connection):
    await add_job(connection, state="SCHEDULED", run_at=ago(1))
    await add_job(connection, state="SUCCEEDED", finished_at=ago(1))
    await add_job(connection, expires_at=ago(0.001))
    await add_job(connection, queue="other")
    assert await claimed(connection) == []
    await add_job(connection, expires_at=ahead(60))
    await insert(connection, "jobqueue_queue", "name", {"name": "default", "paused_at": ago(1)})
    assert await claimed(connection) == []
    await connection.execute("UPDATE jobqueue_queue SET paused_at = NULL")
    assert len(await claimed(connection)) == 1


@pytest.mark.spec("S36")
async def test_locked_rows_are_skipped_not_waited_for(connection, connect):
    other = await connect()
    first, second = await add_job(connection, priority=1), await add_job(connection)
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [first])
        assert [claim.id for claim in await claimed(connection, 2)] == [second]
    assert [claim.id for claim in await claimed(connection, 2)] == [first]


@pytest.mark.spec("S36", "D21")
async def test_no_row_is_claimed_twice_by_many_at_once(connection, connect):
    await connection.execute(
        "INSERT INTO jobqueue_job (task) SELECT 'x.y' FROM generate_series(1, 600)"
    )
    connections = [await connect() for _ in range(8)]

    async def take_all(own):
        taken = []
        while rows := await claimed(own, 7):
            taken += [row.id for row in rows]
        return taken

    rounds = await asyncio.gather(*map(take_all, connections))
    taken = [job for own in rounds for job in own]
    assert len(taken) == len(set(taken)) == 600


async def test_a_claimed_job_says_when_it_was_first_parked(connection):
    await add_job(connection, parked_at=ago(100))
    (claim,) = await claimed(connection)
    assert 99 < claim.parked_seconds < 200


@pytest.mark.spec("S101", "A6")
async def test_a_round_whose_answer_was_lost_is_found_by_its_tokens(connection):
    for _ in range(3):
        await add_job(connection)
    given = tokens(2)
    rows = await claims.claim(connection, "default", ME, given, 30.0)
    found = await claims.found(connection, ME, given)
    assert sorted(found) == sorted(row._replace(took=0.0) for row in rows)
    assert await claims.found(connection, uuid4(), given) == []
    assert await claims.found(connection, ME, tokens(2)) == []


@pytest.mark.spec("S101")
async def test_a_server_process_is_ended_once_and_then_known_to_be_gone(connection, connect):
    old = await connect()
    backend = await server_process.of_connection(old)
    assert backend.direct
    sleeping = asyncio.ensure_future(old.execute("SELECT pg_sleep(60)"))
    assert await server_process.end(connection, backend)
    with pytest.raises(psycopg.OperationalError):
        await sleeping
    assert await server_process.end(connection, backend)


@pytest.mark.spec("S101")
async def test_another_process_under_the_same_number_is_left_alone(connection, connect):
    other = await connect()
    backend = await server_process.of_connection(other)
    stranger = replace(backend, started=await one(connection, "SELECT now()"))
    assert await server_process.end(connection, stranger)
    assert await one(other, "SELECT 1") == 1


@pytest.mark.spec("S101")
async def test_a_process_that_a_pooler_has_given_to_another_client_is_not_ended(
    connection, connect
):
    """A pooler that reports real process ids looks like no pooler."""
    other = await connect()
    await other.execute("SET application_name = 'jobqueue claim'")
    backend = await server_process.of_connection(other)
    await other.execute("SET application_name = 'somebody else'")
    assert not await server_process.end(connection, backend)  # so nothing is certain
    assert await one(other, "SELECT 1") == 1
