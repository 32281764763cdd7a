"""Jobs that need newer code: every statement leaves them alone, at no cost for the others."""

import json
from uuid import uuid4

import pytest

from jobqueue.states import Outcome
from jobqueue.store import (
    claims,
    due_work,
    finish,
    finish_and_claim,
    leadership,
    parked,
    promotion,
    reclaims,
    sweeps,
    workers,
)
from jobqueue.store.claims import Key
from jobqueue.versions import UNDERSTANDS
from tests.rows import add_job, add_running, add_worker, ago, history, job_row, one

ME, NEWER, LONG = uuid4(), UNDERSTANDS + 1, 10_000_000.0
STORM = """
INSERT INTO jobqueue_job (task, queue, priority, needs, run_at, state, parked_at)
SELECT 'x.y', 'default', 5, %s, now() - interval '1 day', %s, %s::timestamptz
FROM generate_series(1, 100000)
"""


def tokens(count=5):
    return [uuid4() for _ in range(count)]


async def claim_first(connection):
    return await claims.claim(connection, "default", ME, tokens(), 30.0)


async def claim_onward(connection):
    key = Key(100, await one(connection, "SELECT now() - interval '9 days'"), 0)
    return await claims.claim(connection, "default", ME, tokens(), 30.0, key)


async def claim_around(connection):
    return await claims.claim_around(connection, "default", ME, tokens(), 30.0, [])


async def claim_one(connection):
    (job,) = await claims.ready(connection, "default", 5, []) or [0]
    return await claims.claim_one(connection, "default", ME, uuid4(), 30.0, job)


async def exchange(connection):
    _, rows = await finish_and_claim.finish_and_claim(
        connection, "default", ME, tokens(), 30.0, None, []
    )
    return rows


@pytest.mark.parametrize("claim", [claim_first, claim_onward, claim_around, claim_one, exchange])
async def test_a_claim_takes_the_plain_job_behind_a_newer_one(connection, claim):
    newer = await add_job(connection, needs=NEWER, priority=9)
    plain = await add_job(connection, needs=UNDERSTANDS)
    assert [row.id for row in await claim(connection)] == [plain]
    assert (await job_row(connection, newer))["state"] == "READY"


@pytest.mark.parametrize("name", ["promote", "one by one", "parked", "expire", "park", "prune"])
async def test_no_sweep_touches_a_newer_job(connection, name):
    columns = {
        "promote": {"state": "SCHEDULED", "run_at": ago(60)},
        "one by one": {"state": "SCHEDULED", "run_at": ago(60)},
        "parked": {"state": "SCHEDULED", "parked_at": ago(60)},
        "expire": {"expires_at": ago(60)},
        "park": {"state": "SCHEDULED", "parked_at": ago(60)},
        "prune": {"state": "DEAD", "finished_at": ago(60)},
    }[name]
    job = await add_job(connection, needs=NEWER, **columns)
    plain = await add_job(connection, needs=UNDERSTANDS, **columns)
    before = await job_row(connection, job)
    match name:
        case "promote":
            await promotion.promote(connection, 10)
        case "one by one":
            assert await promotion.due(connection, 10) == [plain]
            for each in (job, plain):
                await promotion.promote_one(connection, each)
        case "parked":
            assert await parked.tasks(connection, 10) == [("default", "shop.receipt")]
            await parked.promote(connection, [("default", "shop.receipt")], 10)
        case "expire" | "park":
            assert await sweeps.expirable(connection, 10, 30) == [plain]
            await sweeps.expire(connection, [job, plain], 30, "leader")
        case "prune":
            assert await sweeps.prunable(connection, "DEAD", 30, 10) == [plain]
            await sweeps.prune(connection, [job, plain], "DEAD", 30)
    assert await job_row(connection, job) == before
    changed = "SELECT count(*) FROM jobqueue_job WHERE id = %s AND state = %s"
    assert await one(connection, changed, plain, before["state"]) == 0


async def test_only_what_is_understood_is_reclaimed(connection):
    job, token = await add_running(connection, needs=NEWER)
    plain, other = await add_running(connection, needs=UNDERSTANDS)
    assert [row.id for row in await reclaims.lapsed(connection, 10)] == [plain]
    verdicts = [reclaims.Verdict(job, token, 0.0), reclaims.Verdict(plain, other, 0.0)]
    assert [row.id for row in await reclaims.reclaim(connection, verdicts, "leader")] == [plain]
    assert (await job_row(connection, job))["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("outcome", "values", "state"),
    [
        (Outcome.FAILED, {"delay": 5.0}, None),
        (Outcome.SNOOZED, {"delay": 5.0}, None),
        (Outcome.INTERRUPTED, {}, None),
        (None, {}, None),
        (None, {"reason": "unknown task"}, None),
        (Outcome.SUCCEEDED, {"result": "1"}, "SUCCEEDED"),
        (Outcome.FAILED, {"final": True, "reason": "permanent error"}, "DEAD"),
        (Outcome.CANCELLED, {}, "CANCELLED"),
    ],
)
async def test_a_job_that_became_newer_while_it_ran_is_not_sent_back_to_wait(
    connection, outcome, values, state
):
    """It ends, or it is left to its lease: whether it may run again is for newer code to say."""
    job, token = await add_running(connection, worker=ME)
    await connection.execute("UPDATE jobqueue_job SET needs = %s", [NEWER])
    ending = finish.Ending(id=job, token=token, outcome=outcome, **values)
    (written,) = await finish.finish(connection, ME, [ending])
    row = await job_row(connection, job)
    assert (written.state, written.newer, written.busy) == (state, state is None, state is None)
    assert not written.refused
    assert row["state"] == (state or "RUNNING")
    assert row["lease_token"] == (None if state else token)
    assert len(await history(connection, job)) == (1 if state else 0)


async def test_the_leader_hears_of_newer_work_only_while_somebody_understands_it(connection):
    await add_running(connection, needs=NEWER)

    async def newer():
        return (await due_work.find(connection, 60, {})).newer

    assert not await newer()
    worker = await add_worker(connection, understands=NEWER, may_lead=False)
    assert not await newer()  # nobody would lead in its place
    await connection.execute("UPDATE jobqueue_worker SET may_lead = true")
    assert await newer()
    assert await leadership.elect(connection, uuid4(), 15, yields=True) is None
    await connection.execute("UPDATE jobqueue_worker SET died_at = now() WHERE id = %s", [worker])
    assert not await newer()
    assert await leadership.elect(connection, uuid4(), 15, yields=True) == 1


async def test_a_worker_says_what_it_understands(connection):
    facts = dict.fromkeys(("name", "hostname", "pid_namespace", "time_namespace", "boot_id"), "")
    identity = workers.Identity(
        id=ME,
        **facts,
        pid=1,
        pid_started=None,
        supervisor="",
        version="",
        queues=[],
        concurrency=1,
        may_lead=False,
    )
    await workers.register(connection, identity)
    stored = await connection.execute("SELECT understands, may_lead FROM jobqueue_worker")
    assert await stored.fetchall() == [(UNDERSTANDS, False)]


async def pages_read(connection, statement, parameters):
    """How many pages the statement touches: a figure that a busy machine does not change."""
    cursor = await connection.execute(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
    )
    (plan,) = (await cursor.fetchone())[0]
    plan = plan if isinstance(plan, dict) else json.loads(plan)
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


@pytest.mark.parametrize("analysed", [True, False])
async def test_a_hundred_thousand_newer_jobs_in_front_delay_no_claim(connection, analysed):
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    for _ in range(10):
        await add_job(connection)
    given = claims.claim_parameters("default", ME, tokens(10), 30.0, None)
    async with connection.transaction(force_rollback=True):
        alone = await pages_read(connection, claims.CLAIM, given)
    await connection.execute(STORM, [NEWER, "READY", None])
    await connection.execute(STORM, [NEWER, "SCHEDULED", None])
    if analysed:
        await connection.execute("ANALYZE jobqueue_job")
    async with connection.transaction(force_rollback=True):
        behind = await pages_read(connection, claims.CLAIM, given)
    assert behind < alone + 100  # to walk past them would take thousands
    due = await pages_read(connection, promotion.DUE, {"limit": 500, "skip": []})
    assert due < 100
    assert len(await claims.claim(connection, "default", ME, tokens(20), 30.0)) == 10


async def test_a_hundred_thousand_parked_jobs_cost_a_look_a_few_pages(connection):
    await connection.execute(STORM, [UNDERSTANDS, "SCHEDULED", "2026-01-01"])
    for number in range(10):
        await add_job(connection, state="SCHEDULED", parked_at=ago(60), task=f"new.task{number}")
    await connection.execute("ANALYZE jobqueue_job")
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    found = await parked.tasks(connection, 100)
    assert found == [
        *[("default", f"new.task{number}") for number in range(10)],
        ("default", "x.y"),
    ]
    assert await pages_read(connection, parked.TASKS, {"limit": 100}) < 200
    known = found[:-1]
    given = {"queues": [q for q, _ in known], "tasks": [t for _, t in known], "limit": 4}
    async with connection.transaction(force_rollback=True):
        assert await pages_read(connection, parked.PROMOTE, given) < 400
    assert await parked.promote(connection, known, 4) == ["default"] * 4
    assert await one(connection, "SELECT count(*) FROM jobqueue_job WHERE state = 'READY'") == 4
