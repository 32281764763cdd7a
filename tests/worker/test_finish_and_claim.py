"""A claim that writes along what has ended, and everything that can come between."""

import asyncio
import random
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import uuid4

import pytest
import pytest_asyncio
from psycopg.rows import dict_row

from jobqueue.states import Outcome
from jobqueue.store import claims, finish_and_claim, reclaims
from jobqueue.store import finish as store_finish
from jobqueue.store.finish import Ending
from jobqueue.worker.claiming.claim_round import new_tokens
from jobqueue.worker.inflight import Fate
from tests.rows import add_job, history, job_row, one
from tests.waiting import until
from tests.worker.faults import end
from tests.worker.intake import make, overcommitment, proxy

__all__ = ["make", "proxy"]

SLOTS = 3


@pytest_asyncio.fixture
async def slots(connection):
    async with overcommitment(connection, SLOTS) as most:
        yield most


@pytest.fixture
def exchanged(monkeypatch):
    """What was written along with a claim; nothing is written before it can be."""
    real, seen = finish_and_claim.finish_and_claim, []

    async def noted(*args):
        seen.append([ending.id for ending in args[-1]])
        return await real(*args)

    monkeypatch.setattr(finish_and_claim, "finish_and_claim", noted)
    return seen


async def fill(make, connection, count=8):
    """Return an intake whose slots are all taken, and the jobs, the running ones first."""
    jobs = [await add_job(connection, max_attempts=1) for _ in range(count)]
    intake = make(queues=["default"])
    intake.run()
    await until(lambda: intake.started() == jobs[:SLOTS])
    await intake.completer.session.open(5)
    return intake, jobs


def finish(intake, *which, outcome=Outcome.SUCCEEDED, **fields):
    """The handlers of these jobs end, all in one turn of the loop."""
    for inflight in list(intake.registry):
        if inflight.claim.id in which:
            intake.put(inflight, outcome, **fields)
    intake.registry.freed.set()  # the claimer looks at once, not after a second


@asynccontextmanager
async def finisher_at_rest(intake):
    """While only the claimer may write."""
    await end(intake.tasks[1])
    yield
    intake.tasks[1] = asyncio.ensure_future(intake.completer.run())


async def states(connection, jobs):
    return [(await job_row(connection, job))["state"] for job in jobs]


@pytest.mark.spec("S37", "S38", "S44", "S66")
async def test_what_has_ended_is_written_by_the_claim_that_takes_its_slots(
    make, connection, slots, exchanged
):
    intake, jobs = await fill(make, connection)
    for first in range(0, 6, SLOTS):
        ended = jobs[first : first + SLOTS]
        async with finisher_at_rest(intake):
            finish(intake, *ended)
            await until(lambda first=first: len(intake.started()) == min(first + 2 * SLOTS, 8))
    assert exchanged == [jobs[0:3], jobs[3:6]]
    assert await states(connection, jobs) == ["SUCCEEDED"] * 6 + ["RUNNING"] * 2
    assert len(intake.registry) == 2
    assert intake.registry.counts[Fate.COMPLETED] == 6
    assert await slots() is None


@pytest.mark.spec("S53", "S69", "S101", "A6")
@pytest.mark.parametrize("fault", ["silence", "cut"])
@pytest.mark.parametrize("has_happened", [True, False])
async def test_when_its_answer_is_lost_outcomes_are_repeated_and_claims_are_looked_for(
    make, connection, proxy, slots, exchanged, monkeypatch, fault, has_happened
):
    intake, jobs = await fill(make, connection, 6)
    if fault == "silence":
        monkeypatch.setattr("jobqueue.worker.claiming.claim_round.CALL_SECONDS", 0.5)
    proxy.only = "claim"
    proxy.swallow, proxy.swallow_answers = not has_happened, True
    async with finisher_at_rest(intake):
        finish(intake, *jobs[:SLOTS])
        if has_happened:
            await until(lambda: _are(connection, jobs, ["SUCCEEDED"] * 3 + ["RUNNING"] * 3))
        else:
            await proxy.swallowed.wait()
        if fault == "cut":
            proxy.cut()
        proxy.heal()
        await until(lambda: len(intake.claimer._lost_claims) or len(intake.handlers.returned))
    await until(lambda: len(intake.started()) == 6)
    for job in jobs[:SLOTS]:
        assert [row["outcome"] for row in await history(connection, job)] == ["SUCCEEDED"]
    written = [fact for fact in intake.recorded.written_ if fact[1] is not None]
    assert sorted(written) == [(job, Outcome.SUCCEEDED, "SUCCEEDED") for job in jobs[:SLOTS]]
    returned = [inflight.claim.id for inflight in intake.handlers.returned]
    assert sorted(returned) == (jobs[SLOTS:] if has_happened else [])
    for job in jobs[SLOTS:]:
        row = await job_row(connection, job)
        assert (row["state"], row["attempts"], row["failures"]) == ("RUNNING", 0, 0)
    assert not intake.recorded.refused_ + intake.recorded.given_up_
    assert await slots() is None


async def _are(connection, jobs, wanted):
    return await states(connection, jobs) == wanted


@pytest.mark.spec("S66", "S48")
async def test_data_that_the_database_refuses_sinks_neither_the_claim_nor_its_neighbours(
    make, connection, slots, exchanged
):
    """And it is no fault of the claimer's: more than five in a row do not end it."""
    intake, jobs = await fill(make, connection, 24)
    for first in range(0, 21, SLOTS):
        async with finisher_at_rest(intake):
            finish(intake, jobs[first], result='"\\u0000"')
            finish(intake, *jobs[first + 1 : first + SLOTS])
            await until(lambda first=first: jobs[first : first + SLOTS] in exchanged)
        await until(lambda first=first: len(intake.started()) == min(first + 2 * SLOTS, 24))
    assert not intake.tasks[0].done()
    assert not intake.outage_log._troubled
    await until(lambda: not len(intake.completer))
    assert await states(connection, jobs[:21]) == ["DEAD", "SUCCEEDED", "SUCCEEDED"] * 7
    assert await slots() is None


@pytest.mark.spec("S120", "S123", "D118")
async def test_a_locked_row_keeps_its_slot_and_its_neighbours_lose_nothing(
    make, connection, connect, slots, exchanged
):
    intake, jobs = await fill(make, connection)
    other = await connect()
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [jobs[0]])
        async with finisher_at_rest(intake):
            finish(intake, *jobs[:SLOTS])
            await until(lambda: len(intake.started()) == 5)
        assert await states(connection, jobs) == [
            *["RUNNING", "SUCCEEDED", "SUCCEEDED"],
            *["RUNNING", "RUNNING", "READY", "READY", "READY"],
        ]
    await until(lambda: len(intake.started()) == 6)
    assert await states(connection, jobs[:1]) == ["SUCCEEDED"]
    assert await slots() is None


@pytest.mark.spec("S44", "S67")
async def test_a_refused_outcome_does_not_make_a_full_round_look_short(
    make, connection, slots, exchanged
):
    """Its slot is taken by another job; and the queue, which holds more, is asked again."""
    intake, jobs = await fill(make, connection)
    (lost,) = [inflight for inflight in intake.registry if inflight.claim.id == jobs[0]]
    await connection.execute(
        "UPDATE jobqueue_job SET lease_expires_at = now() - interval '1 s' WHERE id = %s", jobs[:1]
    )
    verdict = reclaims.Verdict(lost.claim.id, lost.token, 600.0)
    assert await reclaims.reclaim(connection, [verdict], "leader")
    for round in range(SLOTS, 8):
        finish(intake, jobs[round - SLOTS])
        await until(lambda round=round: len(intake.started()) == round + 1)
        await until(lambda: not len(intake.completer))
    assert intake.recorded.refused_ == [(jobs[0], Outcome.SUCCEEDED, "LOST")]
    assert await slots() is None


@pytest.mark.spec("S50", "S51", "S70")
async def test_at_a_stop_in_its_middle_outcomes_stand_and_claims_go_back(
    make, connection, monkeypatch, slots
):
    intake, jobs = await fill(make, connection)
    real = finish_and_claim.finish_and_claim

    async def stopped_meanwhile(*args):
        answer = await real(*args)
        intake.claimer.stop()
        return answer

    monkeypatch.setattr(finish_and_claim, "finish_and_claim", stopped_meanwhile)
    async with finisher_at_rest(intake):
        finish(intake, *jobs[:SLOTS])
        await intake.tasks[0]
    await until(lambda: not len(intake.registry))
    assert await states(connection, jobs) == ["SUCCEEDED"] * 3 + ["READY"] * 5
    counts = intake.registry.counts
    assert (counts[Fate.COMPLETED], counts[Fate.RETURNED]) == (3, 3)
    assert intake.registry.claimed == 6
    assert len(intake.started()) == 3
    assert await slots() is None


@pytest.mark.spec("S50", "S53", "S102")
async def test_cut_off_by_the_deadline_it_leaves_nothing_behind(
    make, connection, proxy, slots, exchanged
):
    intake, jobs = await fill(make, connection)
    proxy.only, proxy.swallow_answers = "claim", True
    happened = ["SUCCEEDED"] * 3 + ["RUNNING"] * 3 + ["READY"] * 2
    async with finisher_at_rest(intake):
        finish(intake, *jobs[:SLOTS])
        await until(lambda: _are(connection, jobs, happened))
        intake.claimer.stop()
        await end(intake.tasks[0])
        proxy.heal()
        await intake.claimer.recover_lost()
    intake.completer.close()
    await asyncio.wait_for(intake.tasks[1], 10)
    assert await states(connection, jobs) == ["SUCCEEDED"] * 3 + ["READY"] * 5
    counts = intake.registry.counts
    assert (counts[Fate.COMPLETED], counts[Fate.RETURNED], counts[Fate.UNRECORDED]) == (3, 3, 0)
    assert len(intake.registry) == 0
    assert await slots() is None


async def test_a_completer_closed_during_a_write_ends_with_the_answer(make, connection):
    """The last outcome is on its way with a claim when nothing more is to come."""
    intake, jobs = await fill(make, connection)
    batch = []
    async with finisher_at_rest(intake):
        intake.claimer.stop()
        await intake.tasks[0]
        finish(intake, *jobs[:SLOTS])
        batch += intake.completer.pending.lend(SLOTS)
    assert len(batch) == SLOTS
    intake.completer.close()
    for _ in range(3):
        await asyncio.sleep(0)
    answers = await store_finish.finish(
        connection, intake.claimer.intake.worker, [waiting.ending for waiting in batch]
    )
    intake.completer.apply_answers(batch, answers)
    await asyncio.wait_for(intake.tasks[1], 10)
    assert intake.registry.counts[Fate.COMPLETED] == SLOTS


@pytest.mark.spec("S37", "S53", "S69", "S101", "S154")
async def test_through_any_outage_each_job_ends_once_and_no_slot_is_given_twice(
    make, connection, proxy, slots, monkeypatch
):
    """Cuts at any moment of forty rounds, by which each job has its one outcome all the same."""
    monkeypatch.setattr("jobqueue.worker.claiming.lost_claims.QUERY_SECONDS", 0.05)
    intake, jobs = await fill(make, connection, 60)
    for policy in (*intake.claimer.error_policies, intake.completer.error_policy):
        policy._backoff.most = 0.05

    async def weather():
        while True:
            await asyncio.sleep(random.uniform(0, 0.2))
            proxy.cut()

    storm = asyncio.ensure_future(weather())
    try:

        def all_over():
            for inflight in intake.handlers.started:
                if not inflight.ended and intake.registry.get(inflight.token):
                    intake.put(inflight)
            return intake.registry.counts[Fate.COMPLETED] >= 60

        await until(all_over, seconds=60)
    finally:
        await end(storm)
    assert await states(connection, jobs) == ["SUCCEEDED"] * 60
    for job in jobs:
        assert [row["number"] for row in await history(connection, job)] == [1]
    started = [inflight.claim.id for inflight in intake.handlers.started]
    assert sorted(started) == jobs
    assert intake.registry.counts[Fate.UNRECORDED] == 0
    assert await slots() is None


@pytest.mark.spec("S37")
async def test_more_locked_rows_than_free_slots_are_no_error(connection, connect):
    worker = uuid4()
    for _ in range(5):
        await add_job(connection)
    rows = await claims.claim(connection, "default", worker, new_tokens(3), 30.0)
    ended = [Ending(id=row.id, token=row.token, outcome=Outcome.SUCCEEDED) for row in rows]
    other = await connect()
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_job FOR UPDATE")
        answers, claimed = await finish_and_claim.finish_and_claim(
            connection, "default", worker, new_tokens(1), 30.0, None, ended
        )
    assert (answers, claimed) == ([], [])


@pytest.mark.spec("S66", "S67")
async def test_what_is_more_than_a_success_is_left_to_the_finisher(
    make, connection, slots, exchanged
):
    intake, jobs = await fill(make, connection)
    async with finisher_at_rest(intake):
        finish(intake, jobs[0], outcome=Outcome.FAILED)
        finish(intake, jobs[1], progress='{"done": 1}')
        finish(intake, jobs[2], result='"one"')
        await until(lambda: len(intake.started()) == SLOTS + 1)
        assert exchanged == [jobs[2:3]]
        assert await states(connection, jobs[:3]) == ["RUNNING", "RUNNING", "SUCCEEDED"]
    await until(lambda: len(intake.started()) == 2 * SLOTS)
    assert await states(connection, jobs[:3]) == ["DEAD", "SUCCEEDED", "SUCCEEDED"]
    assert await slots() is None


@pytest.mark.spec("S37", "S66")
async def test_an_exchange_leaves_the_same_rows_as_a_finish(connection):
    """All columns, but the moments: those only whether they are set."""
    results = [None, "null", '"one"', '{"a": [1, null]}', '"\\"\\\\ {},"']
    job, attempt = "SELECT * FROM jobqueue_job WHERE id = %s", "SELECT * FROM jobqueue_attempt"
    rows = []
    for write in (_by_exchange, store_finish.finish):
        worker, ids = uuid4(), [await add_job(connection) for _ in results]
        await connection.execute(
            "UPDATE jobqueue_job SET attempts = 2, failures = 1, reason = 'retry', "
            "last_error = 'x', hold_until = now(), parked_at = now(), cancel_requested_at = now()"
        )
        claimed = await claims.claim(connection, "default", worker, new_tokens(9), 30.0)
        ended = [
            Ending(row.id, row.token, Outcome.SUCCEEDED, result=result)
            for row, result in zip(claimed, results, strict=True)
        ]
        answers = await write(connection, worker, ended)
        assert [answer.state for answer in answers] == ["SUCCEEDED"] * len(results)
        left = [await _row(connection, job, id) for id in ids]
        left += [await _row(connection, f"{attempt} WHERE job_id = %s", id) for id in ids]
        rows.append(left)
        await connection.execute("DELETE FROM jobqueue_job")
    assert rows[0] == rows[1]


async def _by_exchange(connection, worker, ended):
    written, claimed = await finish_and_claim.finish_and_claim(
        connection, "none", worker, [], 30.0, None, ended
    )
    assert claimed == []
    return written


async def _row(connection, query, id):
    cursor = connection.cursor(row_factory=dict_row)
    row = await (await cursor.execute(query, [id])).fetchone()
    for name in ("id", "job_id", "token", "worker"):
        row.pop(name, None)
    return {
        name: value is not None if isinstance(value, datetime) else value
        for name, value in row.items()
    }


MEANWHILE = {
    "renewed": "UPDATE jobqueue_job SET lease_expires_at = now() + interval '1 h' WHERE id = %s",
    "cancelled": "UPDATE jobqueue_job SET cancel_requested_at = now() WHERE id = %s",
    "taken away": "UPDATE jobqueue_job SET lease_token = gen_random_uuid() WHERE id = %s",
    "gone": "DELETE FROM jobqueue_job WHERE id = %s",
}


@pytest.mark.spec("S37", "S66", "S67")
@pytest.mark.parametrize("what", MEANWHILE)
async def test_a_row_that_changes_after_the_snapshot_is_written_or_left_but_never_halfway(
    connection, connect, monkeypatch, what
):
    """The statement has begun, and waits just before it locks its rows."""
    worker, other = uuid4(), await connect()
    for _ in range(6):
        await add_job(connection)
    rows = await claims.claim(connection, "default", worker, new_tokens(3), 30.0)
    ended = [Ending(id=row.id, token=row.token, outcome=Outcome.SUCCEEDED) for row in rows]
    waiting = finish_and_claim.FINISH_AND_CLAIM.replace(
        "    ORDER BY j.id\n", "    AND (SELECT pg_advisory_lock(7)::text) = '' ORDER BY j.id\n", 1
    )
    monkeypatch.setattr(finish_and_claim, "FINISH_AND_CLAIM", waiting)
    await other.execute("SELECT pg_advisory_lock(7)")
    sent = asyncio.ensure_future(
        finish_and_claim.finish_and_claim(
            connection, "default", worker, new_tokens(3), 30.0, None, ended
        )
    )
    await until(
        lambda: one(
            other, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        )
    )
    await other.execute(MEANWHILE[what], [rows[0].id])
    await other.execute("SELECT pg_advisory_unlock(7)")
    written, claimed = await sent
    is_ours = what in ("renewed", "cancelled")
    assert [answer.token for answer in written] == [row.token for row in rows[not is_ours :]]
    assert len(claimed) == len(written)
    for row in rows[not is_ours :]:
        assert (await job_row(connection, row.id))["state"] == "SUCCEEDED"
        assert [attempt["number"] for attempt in await history(connection, row.id)] == [1]
    if not is_ours:
        assert await history(connection, rows[0].id) == []
    if what == "taken away":
        assert (await job_row(connection, rows[0].id))["state"] == "RUNNING"
