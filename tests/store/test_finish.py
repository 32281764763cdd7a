"""The ways out of RUNNING, each fenced by the token, all decided from the locked row."""

from uuid import uuid4

import psycopg
import pytest

from jobqueue.states import Outcome
from jobqueue.store import finish as store_finish
from jobqueue.store.finish import Ending
from tests.rows import add_running, ago, ahead, history, job_row

ME = uuid4()


def ending(claim, outcome=Outcome.SUCCEEDED, **columns):
    job, token = claim
    return Ending(id=job, token=token, outcome=outcome, **columns)


async def finish(connection, *given):
    written = await store_finish.finish(connection, ME, given)
    return {answer.token: answer for answer in written}


async def finished(connection, given):
    (answer,) = await store_finish.finish(connection, ME, [given])
    return answer


async def running(connection, **columns):
    return await add_running(connection, worker=ME, lease=ahead(30), **columns)


@pytest.mark.spec("S66", "S6")
async def test_state_history_result_and_progress_are_written_together(connection):
    claim = await running(connection, attempts=2)
    given = ending(claim, result='{"a": 1}', progress='{"done": 3}')
    answer = await finished(connection, given)
    assert (answer.state, answer.attempts) == ("SUCCEEDED", 3)
    row = await job_row(connection, claim[0])
    assert (row["state"], row["result"], row["progress"]) == ("SUCCEEDED", {"a": 1}, {"done": 3})
    assert (row["worker"], row["lease_token"], row["lease_expires_at"]) == (None, None, None)
    (attempt,) = await history(connection, claim[0])
    assert (attempt["token"], attempt["number"], attempt["outcome"]) == (claim[1], 3, "SUCCEEDED")
    assert (attempt["recorded_by"], attempt["worker"]) == ("holder", ME)


@pytest.mark.spec("S92", "S67", "A1")
@pytest.mark.parametrize("outcome", [*Outcome, None])
async def test_with_another_token_nothing_changes(connection, outcome):
    claim = await running(connection)
    before = await job_row(connection, claim[0])
    answer = await finished(connection, ending((claim[0], uuid4()), outcome, progress='{"x": 1}'))
    assert answer.refused
    assert not await store_finish.progress(connection, [(claim[0], uuid4(), '{"done": 1}')])
    assert await job_row(connection, claim[0]) == before
    assert await history(connection, claim[0]) == []


@pytest.mark.spec("S69", "S67")
async def test_a_repeated_finish_is_refused_and_its_token_shows_that_it_had_landed(connection):
    claim = await running(connection)
    given = ending(claim)
    assert (await finished(connection, given)).state == "SUCCEEDED"
    assert (await finished(connection, given)).refused
    stands = (await store_finish.late(connection, [given]))[claim[1]]
    assert (stands.outcome, stands.recorded_by) == ("SUCCEEDED", "holder")
    assert stands.state == "SUCCEEDED"
    (attempt,) = await history(connection, claim[0])
    assert attempt["late_outcome"] == ""


@pytest.mark.spec("S69", "S67")
async def test_what_a_loser_wanted_to_write_stays_visible_next_to_lost(connection):
    claim = await running(connection)
    await connection.execute(
        "INSERT INTO jobqueue_attempt (token, job_id, number, outcome, started_at, finished_at,"
        " recorded_by) VALUES (%s, %s, 1, 'LOST', now(), now(), 'leader')",
        [claim[1], claim[0]],
    )
    stands = (await store_finish.late(connection, [ending(claim)]))[claim[1]]
    assert (stands.outcome, stands.recorded_by) == ("LOST", "leader")
    (attempt,) = await history(connection, claim[0])
    assert (attempt["outcome"], attempt["late_outcome"]) == ("LOST", "SUCCEEDED")


async def test_nobody_has_concluded_a_token_without_history(connection):
    claim = await running(connection)
    assert await store_finish.late(connection, [ending(claim)]) == {}


@pytest.mark.spec("S123", "S66")
async def test_a_locked_row_is_busy_and_holds_up_no_neighbour(connection, connect):
    other = await connect()
    locked, free = await running(connection), await running(connection)
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [locked[0]])
        answers = await finish(connection, ending(locked), ending(free))
        assert answers[free[1]].state == "SUCCEEDED"
        assert answers[locked[1]].busy
        assert not answers[locked[1]].refused
        assert not await store_finish.progress(connection, [(*locked, '{"done": 1}')])
    assert (await finished(connection, ending(locked))).state == "SUCCEEDED"


# outcome, what comes with it, the row before, the state after, its reason, failures counted
VERDICTS = [
    (Outcome.SUCCEEDED, {}, {"cancel_requested_at": ago(1)}, "SUCCEEDED", "", 0),
    (Outcome.CANCELLED, {"reason": "cancelled by force"}, {}, "CANCELLED", "cancelled by force", 0),
    (Outcome.FAILED, {"reason": "retry"}, {}, "READY", "retry", 1),
    (Outcome.FAILED, {"reason": "retry", "delay": 9.0}, {}, "SCHEDULED", "retry", 1),
    (Outcome.FAILED, {}, {"failures": 4, "attempts": 4}, "DEAD", "attempts spent", 1),
    (Outcome.TIMED_OUT, {}, {"failures": 4, "attempts": 4}, "DEAD", "timed out", 1),
    (
        Outcome.FAILED,
        {"final": True, "reason": "permanent error"},
        {},
        "DEAD",
        "permanent error",
        1,
    ),
    (Outcome.FAILED, {"delay": 60.0}, {"expires_at": ahead(30)}, "DEAD", "expired", 1),
    (
        Outcome.FAILED,
        {"delay": 9.0},
        {"cancel_requested_at": ago(1)},
        "CANCELLED",
        "cancelled instead of running again",
        1,
    ),
    (
        Outcome.FAILED,
        {"final": True, "reason": "bad result"},
        {"cancel_requested_at": ago(1)},
        "DEAD",
        "bad result",
        1,
    ),
    (Outcome.SNOOZED, {"delay": 9.0, "reason": "snoozed"}, {}, "SCHEDULED", "snoozed", 0),
    (
        Outcome.SNOOZED,
        {"delay": 9.0},
        {"cancel_requested_at": ago(1)},
        "CANCELLED",
        "cancelled instead of running again",
        0,
    ),
    (Outcome.INTERRUPTED, {"reason": "interrupted"}, {}, "READY", "interrupted", 0),
    (Outcome.INTERRUPTED, {"hold": 2.0, "reason": "held"}, {}, "SCHEDULED", "held", 0),
    (
        Outcome.INTERRUPTED,
        {},
        {"cancel_requested_at": ago(1)},
        "CANCELLED",
        "cancelled instead of running again",
        0,
    ),
    (None, {}, {}, "READY", "", 0),
    (None, {}, {"cancel_requested_at": ago(1)}, "CANCELLED", "cancelled before start", 0),
    (None, {"delay": 9.0, "reason": "unknown task"}, {}, "SCHEDULED", "unknown task", 0),
]


@pytest.mark.spec("S71", "S77", "S78", "S79", "S115", "S121", "S122", "A12", "A25")
@pytest.mark.parametrize(("outcome", "given", "before", "state", "reason", "counted"), VERDICTS)
async def test_the_verdict_follows_from_the_outcome_and_the_row(
    connection, outcome, given, before, state, reason, counted
):
    claim = await running(connection, **before)
    answer = await finished(connection, ending(claim, outcome, **given))
    row = await job_row(connection, claim[0])
    assert (answer.state, row["state"], row["reason"]) == (state, state, reason)
    started = outcome is not None
    assert row["failures"] == before.get("failures", 0) + counted
    assert row["attempts"] == before.get("attempts", 0) + started
    assert len(await history(connection, claim[0])) == started
    assert (row["finished_at"] is None) == (state in ("READY", "SCHEDULED"))


@pytest.mark.spec("S50", "S155")
async def test_what_never_started_goes_back_to_its_place(connection):
    claim = await running(connection, run_at=ago(50), priority=7)
    before = await job_row(connection, claim[0])
    await finished(connection, ending(claim, None))
    row = await job_row(connection, claim[0])
    place = ("run_at", "priority", "queue", "attempts", "failures")
    assert [row[name] for name in place] == [before[name] for name in place]
    assert row["started_at"] is None


@pytest.mark.spec("S155")
async def test_a_hold_keeps_the_place_in_the_queue(connection):
    claim = await running(connection, run_at=ago(50))
    before = await job_row(connection, claim[0])
    await finished(connection, ending(claim, Outcome.INTERRUPTED, hold=2.0))
    row = await job_row(connection, claim[0])
    assert row["run_at"] == before["run_at"]
    assert row["hold_until"] > row["run_at"]


async def test_what_will_not_run_again_keeps_its_moment(connection):
    claim = await running(connection, run_at=ago(50), failures=4, attempts=4)
    before = await job_row(connection, claim[0])
    await finished(connection, ending(claim, Outcome.FAILED, delay=600.0))
    assert (await job_row(connection, claim[0]))["run_at"] == before["run_at"]


@pytest.mark.spec("S66")
async def test_data_that_the_database_cannot_store_is_an_error_that_changes_nothing(connection):
    good, bad = await running(connection), await running(connection)
    with pytest.raises(psycopg.DataError):
        await finish(connection, ending(good), ending(bad, result='"\\u0000"'))
    assert (await job_row(connection, good[0]))["state"] == "RUNNING"


@pytest.mark.spec("S92")
async def test_progress_is_stored_under_the_right_token_only(connection):
    mine, lost = await running(connection), await running(connection)
    reports = [(*mine, '{"done": 1}'), (lost[0], uuid4(), '{"done": 2}')]
    assert await store_finish.progress(connection, reports) == {mine[1]}
    assert (await job_row(connection, mine[0]))["progress"] == {"done": 1}
    assert (await job_row(connection, lost[0]))["progress"] is None


@pytest.mark.spec("S67", "D24")
async def test_a_deleted_row_is_refused_and_not_recreated(connection):
    claim = await running(connection)
    await connection.execute("DELETE FROM jobqueue_job WHERE id = %s", [claim[0]])
    assert (await finished(connection, ending(claim))).refused
    assert await history(connection, claim[0]) == []
