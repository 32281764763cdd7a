import asyncio

import pytest

from jobqueue.store import promotion
from tests.rows import add_job, ago, ahead, job_row


@pytest.mark.spec("S182")
async def test_due_jobs_become_ready_with_their_place_kept(connection):
    due = await add_job(connection, state="SCHEDULED", run_at=ago(1), priority=3)
    await add_job(connection, state="SCHEDULED", run_at=ahead(60))
    before = await job_row(connection, due)
    assert await promotion.promote(connection, 10) == ["default"]
    row = await job_row(connection, due)
    assert (row["state"], row["priority"], row["run_at"]) == ("READY", 3, before["run_at"])


async def test_a_held_job_is_not_promoted_before_its_old_process_is_gone(connection):
    held = await add_job(connection, state="SCHEDULED", run_at=ago(9), hold_until=ahead(60))
    assert await promotion.promote(connection, 10) == []
    wait = await promotion.next_due(connection)
    assert wait is not None
    assert 50 < wait <= 60
    await connection.execute("UPDATE jobqueue_job SET hold_until = now()")
    assert await promotion.promote(connection, 10) == ["default"]
    assert (await job_row(connection, held))["hold_until"] is None


@pytest.mark.spec("S177", "S182")
async def test_two_promoters_at_once_promote_each_job_once(connect):
    connection = await connect()
    for _ in range(50):
        await add_job(connection, state="SCHEDULED", run_at=ago(1))
    connections = [await connect() for _ in range(3)]
    answers = await asyncio.gather(*(promotion.promote(one, 30) for one in connections))
    assert sum(map(len, answers)) == 50


async def test_next_due_is_the_earliest_moment_or_none(connection):
    assert await promotion.next_due(connection) is None
    await add_job(connection, state="SCHEDULED", run_at=ahead(60))
    await add_job(connection, state="SCHEDULED", run_at=ahead(10))
    wait = await promotion.next_due(connection)
    assert wait is not None
    assert 5 < wait <= 10
