"""Jobs that were lost twice in a row: found, taken apart from the others, and cleared."""

from uuid import uuid4

import pytest

from jobqueue.states import Outcome
from jobqueue.store import claims, finish, finish_and_claim, reclaims
from jobqueue.versions import UNDERSTANDS
from tests.rows import add_job, add_running, ago, ahead, history, insert, job_row

ME = uuid4()


async def lose(connection, job, delay=0.0):
    """Let it run on a worker that is lost."""
    token = uuid4()
    await connection.execute(
        "UPDATE jobqueue_job SET state = 'RUNNING', worker = %s, lease_token = %s,"
        " lease_expires_at = now(), claimed_at = now() WHERE id = %s",
        [ME, token, job],
    )
    await reclaims.reclaim(connection, [reclaims.Verdict(job, token, delay)], "leader")
    return await job_row(connection, job)


async def suspect_running(connection, **columns):
    return await add_running(connection, worker=ME, suspect=True, attempts=2, **columns)


@pytest.mark.parametrize("delay", [0.0, 5.0])
async def test_two_losses_in_a_row_make_a_suspect(connection, delay):
    job = await add_job(connection)
    assert not (await lose(connection, job, delay))["suspect"]
    row = await lose(connection, job, delay)
    assert (row["suspect"], row["attempts"], row["failures"]) == (True, 2, 2)


@pytest.mark.parametrize("between", [Outcome.FAILED, Outcome.INTERRUPTED])
async def test_two_losses_with_another_end_between_them_do_not(connection, between):
    job = await add_job(connection)
    await lose(connection, job)
    await connection.execute("UPDATE jobqueue_job SET attempts = attempts + 1")
    await insert(
        connection,
        "jobqueue_attempt",
        "token",
        {
            "token": uuid4(),
            "job_id": job,
            "number": 2,
            "outcome": str(between),
            "started_at": ago(1),
            "finished_at": ago(1),
        },
    )
    assert not (await lose(connection, job))["suspect"]


@pytest.mark.parametrize(
    ("outcome", "values", "stays"),
    [
        (Outcome.SUCCEEDED, {}, False),
        (Outcome.FAILED, {"delay": 1.0}, False),
        (Outcome.INTERRUPTED, {}, False),
        (Outcome.SNOOZED, {"delay": 1.0}, False),
        (None, {}, True),  # it has not run
    ],
)
async def test_one_that_ends_otherwise_is_cleared(connection, outcome, values, stays):
    job, token = await suspect_running(connection)
    ending = finish.Ending(id=job, token=token, outcome=outcome, **values)
    await finish.finish(connection, ME, [ending])
    assert (await job_row(connection, job))["suspect"] == stays


async def test_plain_claims_do_not_see_suspects(connection):
    suspect = await add_job(connection, suspect=True, priority=9)
    plain = [await add_job(connection) for _ in range(3)]
    given = [uuid4() for _ in range(5)]
    assert await claims.ready(connection, "default", 5, []) == plain
    assert await claims.claim_one(connection, "default", ME, uuid4(), 30.0, suspect) == []
    found = await claims.claim(connection, "default", ME, given[:1], 30.0)
    _, rows = await finish_and_claim.finish_and_claim(
        connection, "default", ME, given, 30.0, None, []
    )
    assert [claim.id for claim in [*found, *rows]] == plain
    (claim,) = await claims.claim_suspect(connection, "default", ME, uuid4(), 30.0, suspect)
    assert (claim.id, claim.suspect, found[0].suspect) == (suspect, True, False)


async def test_suspects_are_found_in_served_queues_that_are_not_paused(connection):
    await add_job(connection)
    await add_job(connection, suspect=True, needs=UNDERSTANDS + 1)
    await add_job(connection, suspect=True, state="SCHEDULED", run_at=ahead(60))
    await add_job(connection, suspect=True, expires_at=ago(1))
    await add_job(connection, suspect=True, queue="paused")
    await insert(connection, "jobqueue_queue", "name", {"name": "paused", "paused_at": ago(1)})
    mail = await add_job(connection, suspect=True, queue="mail")
    first = await add_job(connection, suspect=True, priority=3)
    other = await add_job(connection, suspect=True)

    async def found(*queues):
        return [job for _, job in await claims.suspects(connection, queues, 10, [])]

    assert await found("default", "paused") == [first, other]
    assert await found("*") == [first, mail, other]
    assert await found("*", "-default") == [mail]
    assert await claims.suspects(connection, ["default"], 1, [first]) == [("default", other)]


@pytest.mark.parametrize("most", [1, 2])
async def test_one_of_few_attempts_dies_and_its_reason_names_what_was_lost_with_it(
    connection, most
):
    lost = uuid4()
    job, token = await add_running(
        connection, worker=lost, max_attempts=most, attempts=most - 1, failures=most - 1
    )
    beside = [(await add_running(connection, worker=lost))[0] for _ in range(2)]
    await add_running(connection)
    await reclaims.reclaim(connection, [reclaims.Verdict(job, token, 0.0)], "leader")
    row = await job_row(connection, job)
    assert row["state"] == "DEAD"
    assert row["reason"] == f"worker lost with jobs {beside[0]}, {beside[1]}"
    assert [attempt["outcome"] for attempt in await history(connection, job)] == ["LOST"]
