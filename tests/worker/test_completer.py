"""Outcomes on their way to the database, whatever happens to the way."""

import asyncio
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from jobqueue.states import Outcome
from jobqueue.store import claims, finish
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.store.finish import Ending
from jobqueue.worker.inflight import Fate, InFlightJobs
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from jobqueue.worker.outcomes.completer import Completer
from tests.processes.proxy import Proxy
from tests.rows import add_job, history, job_row, one
from tests.waiting import until
from tests.worker.faults import RecordedEvents, end

ME = uuid4()
LEASE = 30.0


@pytest_asyncio.fixture
async def proxy(parameters):
    async with Proxy(parameters["host"], int(parameters.get("port") or 5432)) as proxy:
        yield proxy


class Desk:
    """A finisher as a service, and claims to finish."""

    def __init__(self, parameters, proxy, connection):
        host, port = proxy.address
        self.connection, self.registry = connection, InFlightJobs(1000)
        self.recorded, self.outage_log = RecordedEvents(), OutageLog()
        self.session = Session(
            ConnectionParameters.fixed({**parameters, "host": host, "port": port}), "finish"
        )
        self.completer = Completer(
            self.session,
            ME,
            self.registry,
            self.recorded,
            ErrorPolicy("finish", self.outage_log),
            trust_seconds=LEASE,
            on_ready=lambda queue: None,
            on_soon=lambda seconds: None,
        )
        self.task = asyncio.ensure_future(self.completer.run())

    async def claim(self, count=1, ended=True, **columns):
        for _ in range(count):
            await add_job(self.connection, **columns)
        given = [uuid4() for _ in range(count)]
        rows = await claims.claim(self.connection, "default", ME, given, LEASE)
        inflight = [self.registry.add(row, asyncio.get_running_loop().time()) for row in rows]
        for one_held in inflight if ended else ():
            self.registry.end(one_held)
        return inflight

    def put(self, inflight, outcome=Outcome.SUCCEEDED, **columns):
        ending = Ending(id=inflight.claim.id, token=inflight.token, outcome=outcome, **columns)
        self.completer.put(inflight, ending)
        return ending

    async def states(self, *inflight):
        return [(await job_row(self.connection, h.claim.id))["state"] for h in inflight]


@pytest_asyncio.fixture
async def desk(parameters, proxy, connection):
    desk = Desk(parameters, proxy, connection)
    yield desk
    await end(desk.task)
    await desk.session.close()


async def empty(desk):
    await until(lambda: not len(desk.completer) and not desk.completer._unlogged)


@pytest.mark.spec("S66", "S38")
async def test_all_that_wait_are_written_and_their_slots_are_free(desk):
    inflight = await desk.claim(20)
    for one_held in inflight:
        desk.put(one_held)
    await empty(desk)
    assert set(await desk.states(*inflight)) == {"SUCCEEDED"}
    assert len(desk.registry) == 0
    assert desk.registry.counts[Fate.COMPLETED] == 20


@pytest.mark.spec("S66", "S69")
async def test_what_the_database_refuses_is_written_apart_and_sinks_no_neighbour(desk):
    good, nul, huge, odd = await desk.claim(4)
    desk.put(nul, result='"\\u0000"')
    desk.put(good)
    desk.put(huge, Outcome.FAILED, delay=1e300, error_class="x")
    desk.put(odd, Outcome.FAILED, error_message="\0", error_class="x")
    await empty(desk)
    assert await desk.states(good, nul, huge, odd) == ["SUCCEEDED", "DEAD", "DEAD", "DEAD"]
    for inflight in (nul, huge, odd):
        row = await job_row(desk.connection, inflight.claim.id)
        assert row["reason"] == "bad result"
        assert "the database refused the outcome" in row["last_error"]
    assert not desk.outage_log._troubled


@pytest.mark.spec("D127")
async def test_text_that_no_encoding_carries_is_a_refusal_too(desk):
    good, bad = await desk.claim(2)
    desk.put(bad, Outcome.FAILED, error_message="\ud800", error_class="x")
    desk.put(good)
    await empty(desk)
    assert await desk.states(good, bad) == ["SUCCEEDED", "DEAD"]


@pytest.mark.spec("S99")
async def test_what_cannot_be_stored_at_all_is_disowned(desk):
    await desk.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'never'; END $$"
    )
    good, bad = await desk.claim(2)
    await desk.connection.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON jobqueue_job FOR EACH ROW "
        f"WHEN (OLD.id = {bad.claim.id}) EXECUTE FUNCTION refuse()"
    )
    try:
        desk.put(bad)
        desk.put(good)
        await empty(desk)
    finally:
        await desk.connection.execute("DROP FUNCTION refuse CASCADE")
    assert await desk.states(good, bad) == ["SUCCEEDED", "RUNNING"]
    assert desk.recorded.unwritable_ == [bad.claim.id]
    assert desk.registry.renewable() == []


@pytest.mark.spec("S47", "S48")
async def test_a_missing_right_is_a_bug_and_not_the_outcome_s_fault(desk, monkeypatch):
    async def refused(*args):
        raise psycopg.errors.InsufficientPrivilege

    monkeypatch.setattr(finish, "finish", refused)
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)
    (inflight,) = await desk.claim()
    desk.put(inflight)
    await until(desk.task.done)
    assert isinstance(desk.task.exception(), psycopg.errors.InsufficientPrivilege)
    assert not desk.recorded.unwritable_


@pytest.mark.spec("S123", "D118")
async def test_a_locked_row_is_tried_again_and_holds_up_no_neighbour(desk, connect):
    other, (locked, free) = await connect(), await desk.claim(2)
    async with other.transaction():
        await other.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [locked.claim.id])
        desk.put(locked)
        desk.put(free)
        await until(lambda: len(desk.completer) == 1)
        assert await desk.states(free) == ["SUCCEEDED"]
        await until(lambda: desk.completer.pending.get(locked.token).busy > 0.1)
    await empty(desk)
    assert await desk.states(locked) == ["SUCCEEDED"]
    assert not desk.recorded.refused_


async def lose_answer(desk, proxy):
    """Write so that the statement commits and its answer is lost; then let the repeat through."""
    await desk.session.open(5)
    proxy.swallow_answers = True
    return desk


@pytest.mark.spec("S69", "S68")
@pytest.mark.parametrize(
    ("outcome", "fields", "state"),
    [
        (Outcome.SUCCEEDED, {}, "SUCCEEDED"),
        (Outcome.FAILED, {"error_class": "x", "delay": 60.0}, "SCHEDULED"),
        (Outcome.FAILED, {"error_class": "x", "final": True}, "DEAD"),
        (Outcome.INTERRUPTED, {}, "READY"),
        (None, {}, "READY"),
    ],
)
async def test_a_finish_whose_answer_was_lost_is_recognised_by_its_token(
    desk, proxy, outcome, fields, state
):
    (inflight,) = await desk.claim()
    await lose_answer(desk, proxy)
    desk.put(inflight, outcome, **fields)
    await until(lambda: _is(desk, inflight, state))
    proxy.cut()
    proxy.heal()
    await empty(desk)
    assert desk.recorded.written_ == [(inflight.claim.id, outcome, state)]
    assert not desk.recorded.refused_
    assert desk.registry.counts[Fate.UNRECORDED] == 0
    rows = await history(desk.connection, inflight.claim.id)
    assert [row["late_outcome"] for row in rows] == [""] * (outcome is not None)


async def _is(desk, inflight, state):
    return await desk.states(inflight) == [state]


@pytest.mark.spec("S69")
async def test_a_success_whose_answer_was_lost_is_logged_as_the_cancel_that_it_became(desk, proxy):
    """What the row decided (a stored cancel) is logged, not what the worker would have guessed."""
    (inflight,) = await desk.claim()
    await desk.connection.execute("UPDATE jobqueue_job SET cancel_requested_at = now()")
    await lose_answer(desk, proxy)
    desk.put(inflight, Outcome.FAILED, error_class="x", delay=60.0)
    await until(lambda: _is(desk, inflight, "CANCELLED"))
    proxy.cut()
    proxy.heal()
    await empty(desk)
    assert desk.recorded.written_ == [(inflight.claim.id, Outcome.FAILED, "CANCELLED")]


@pytest.mark.spec("S67", "S69", "D15", "D20")
async def test_after_a_reclaim_the_outcome_is_refused_counted_and_left_in_the_history(desk):
    (inflight,) = await desk.claim()
    await _reclaim(desk.connection, inflight)
    desk.put(inflight)
    await empty(desk)
    assert desk.recorded.refused_ == [(inflight.claim.id, Outcome.SUCCEEDED, "LOST")]
    assert not desk.recorded.written_
    assert desk.registry.counts[Fate.UNRECORDED] == 1
    (attempt,) = await history(desk.connection, inflight.claim.id)
    assert (attempt["outcome"], attempt["late_outcome"]) == ("LOST", "SUCCEEDED")
    assert await desk.states(inflight) == ["READY"]


async def _reclaim(connection, inflight):
    from jobqueue.store import reclaims

    await connection.execute("UPDATE jobqueue_job SET lease_expires_at = now() - interval '1 s'")
    verdict = reclaims.Verdict(inflight.claim.id, inflight.token, 0.0)
    assert await reclaims.reclaim(connection, [verdict], "leader")


@pytest.mark.spec("S67", "D15")
async def test_a_worker_that_was_frozen_past_its_lease_still_says_what_it_wanted(desk):
    """Its trust is over, but the database answers: asked first, given up only when it does not."""
    mine, taken = await desk.claim(2)
    await _reclaim(desk.connection, taken)
    for inflight in (mine, taken):
        inflight.trusted_from -= 2 * LEASE
        desk.put(inflight)
    await empty(desk)
    assert await desk.states(mine) == ["SUCCEEDED"]  # nobody had taken it: no second run
    assert desk.recorded.refused_ == [(taken.claim.id, Outcome.SUCCEEDED, "LOST")]
    assert not desk.recorded.given_up_


@pytest.mark.spec("S68", "S99", "S100")
async def test_an_outcome_that_cannot_be_written_within_its_lease_is_disowned(desk, proxy):
    (inflight,) = await desk.claim()
    proxy.refuse = True
    desk.completer.trust_seconds = 0.3
    desk.put(inflight)
    assert inflight in desk.registry.renewable()
    await until(lambda: desk.recorded.given_up_ == [inflight.claim.id])
    assert desk.registry.renewable() == []
    assert desk.registry.counts[Fate.UNRECORDED] == 1
    assert len(desk.registry) == 0
    assert not desk.outage_log._troubled  # nothing is left to write: no outage of this service
    proxy.heal()
    (later,) = await desk.claim()
    desk.put(later)
    await empty(desk)
    assert await desk.states(later) == ["SUCCEEDED"]


@pytest.mark.spec("S70", "S68")
async def test_an_outage_delays_an_outcome_and_changes_nothing_else(desk, proxy):
    (inflight,) = await desk.claim()
    await desk.session.open(5)
    proxy.refuse = True
    proxy.cut()
    desk.put(inflight, Outcome.FAILED, error_class="x", error_message="its own", final=True)
    await until(lambda: desk.outage_log._troubled)
    proxy.heal()
    await empty(desk)
    row = await job_row(desk.connection, inflight.claim.id)
    assert (row["state"], row["last_error"], row["failures"]) == ("DEAD", "x: its own", 1)


@pytest.mark.spec("S145", "S154")
async def test_what_is_given_up_while_it_is_being_written_is_counted_once(desk, proxy):
    inflight = await desk.claim(3)
    await desk.session.open(5)
    proxy.delay = (0.3, 0.3)
    for one_held in inflight:
        desk.put(one_held)
    await asyncio.sleep(0)
    assert sorted(desk.completer.give_up_all()) == sorted(h.claim.id for h in inflight)
    (later,) = await desk.claim()
    desk.put(later)
    await empty(desk)
    assert desk.registry.counts[Fate.UNRECORDED] == 3
    assert desk.registry.counts[Fate.COMPLETED] == 1
    assert not desk.task.done()


async def test_once_closed_it_ends_when_nothing_waits_and_does_not_sit_out_a_backoff(desk, proxy):
    (inflight,) = await desk.claim()
    desk.completer.error_policy._backoff.failures = 30  # a long outage: it would wait for seconds
    proxy.refuse = True
    desk.put(inflight)
    await until(lambda: desk.outage_log._troubled)
    proxy.heal()
    desk.completer.close()
    await asyncio.wait({desk.task}, timeout=3)
    assert desk.task.done()
    assert await desk.states(inflight) == ["SUCCEEDED"]


async def test_progress_is_stored_while_the_handler_runs_and_kept_during_an_outage(desk, proxy):
    (inflight,) = await desk.claim(ended=False)
    await desk.session.open(5)
    proxy.refuse = True
    proxy.cut()
    inflight.control.progress = '{"done": 1}'
    desk.completer.note_progress(inflight)
    await until(lambda: desk.outage_log._troubled)
    proxy.heal()
    progress = "SELECT progress->>'done' FROM jobqueue_job"
    await until(lambda: one(desk.connection, progress))
    assert await one(desk.connection, progress) == "1"
