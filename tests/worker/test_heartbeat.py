"""The beat, against a real database: what it renews, hears, repeats and survives; and the trust."""

import asyncio
import contextlib
from dataclasses import replace
from itertools import pairwise
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.conf import TOLERATED_FAILED_BEATS, Settings
from jobqueue.store import reclaims
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import CallTimeout
from jobqueue.store.events import Note
from jobqueue.worker.bulk_orders import BulkOrders
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.lease.heartbeat import LEAST_SECONDS, Heartbeat
from jobqueue.worker.lease.lease_guard import LeaseGuard
from jobqueue.worker.options import WorkerOptions, identity
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from jobqueue.worker.process.watchdog import Watchdog
from tests.rows import add_job, add_running, ago, ahead, job_row, one
from tests.waiting import until
from tests.worker.parts import SHORT, StoppingExecutor, hold, settings

# A budget for a busy machine.
CALM = replace(SHORT, heartbeat_seconds=5.0)


def now():
    return asyncio.get_running_loop().time()


class Bench:
    """A heartbeat with its registry, on a session of its own."""

    def __init__(self, parameters, config=CALM):
        self.settings, self.registry = config, InFlightJobs(10)
        self.executor = StoppingExecutor(now, config.cancel_seconds)
        self.session = Session(ConnectionParameters.fixed(parameters), "beat")
        self.left, self.beats, self.overdue_beats = [], 0, 0
        self.heartbeat = Heartbeat(
            self.session,
            identity(config, WorkerOptions()),
            config,
            self.registry,
            self.executor,
            ErrorPolicy("beat", OutageLog()),
            listener=None,
            leader=None,
            bulk_orders=BulkOrders(60.0),
            phase=lambda: "RUNNING",
            idle_reason=lambda: "",
            signals_dropped=lambda: 0,
            on_beat=self.beaten,
            on_overdue=self.overdue,
            on_certified_dead=self.left.append,
        )

    def overdue(self):
        self.overdue_beats += 1

    def beaten(self):
        self.beats += 1

    async def hold(self, connection, **columns):
        job, token = await add_running(
            connection, worker=self.heartbeat.identity.id, lease=ahead(1), **columns
        )
        return hold(self.registry, trusted_from=now() - 0.5, id=job, token=token)


@pytest.fixture
async def bench(parameters):
    made = []

    def make(config=CALM):
        made.append(Bench(parameters, config))
        return made[-1]

    yield make
    for one_bench in made:
        await one_bench.session.close()


async def test_a_beat_that_finds_overdue_jobs_has_them_promoted(bench, connection):
    b = bench()
    await b.heartbeat.beat()
    assert (b.heartbeat.overdue, b.overdue_beats) == (False, 0)
    await add_job(connection, state="SCHEDULED", run_at=ago(5))
    await b.heartbeat.beat()
    assert (b.heartbeat.overdue, b.overdue_beats) == (True, 1)


@pytest.mark.spec("S93", "S98", "S118", "S123", "S207")
async def test_one_beat_renews_what_is_held_and_holds_nobody_up(bench, connection, connect):
    """D118 in small: a row that somebody has locked keeps its trust, its neighbours are renewed."""
    b = bench()
    inflight = [await b.hold(connection) for _ in range(10)]
    other = await connect()
    async with other.transaction():
        await other.execute(
            "SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [inflight[4].claim.id]
        )
        sent = now()
        await b.heartbeat.beat()
        assert now() - sent < b.settings.beat_budget_seconds + 1
    assert all(h.trusted_from >= sent for h in inflight)
    assert not b.executor.stopped
    lease = "SELECT lease_expires_at > clock_timestamp() + interval '1.5 s' FROM jobqueue_job"
    for index, h in enumerate(inflight):
        assert await one(connection, f"{lease} WHERE id = %s", h.claim.id) is (index != 4)
    await b.heartbeat.beat()
    assert await one(connection, f"{lease} WHERE id = %s", inflight[4].claim.id)


@pytest.mark.spec("S103", "S206", "S92")
async def test_a_lost_lease_is_noticed_and_its_handler_stopped(bench, connection):
    b = bench()
    kept, lost = await b.hold(connection), await b.hold(connection)
    await connection.execute(
        "UPDATE jobqueue_job SET lease_token = %s WHERE id = %s", [uuid4(), lost.claim.id]
    )
    await b.heartbeat.beat()
    assert b.executor.stopped == [(lost.claim.id, "lease")]
    assert (lost.lost, kept.lost) == (True, False)
    assert b.registry.renewable() == [kept]


@pytest.mark.spec("S100", "S103")
@pytest.mark.parametrize("state", ["ended", "released", "recording"])
async def test_an_outcome_on_its_way_is_not_taken_for_a_loss(bench, connection, state):
    b = bench()
    inflight = await b.hold(connection)
    setattr(inflight, state, object())
    await connection.execute("DELETE FROM jobqueue_job")
    await b.heartbeat.beat()
    assert not b.executor.stopped
    assert not inflight.lost


@pytest.mark.spec("S114", "S116", "S126")
async def test_a_cancel_request_is_heard_by_the_beat(bench, connection):
    b = bench()
    inflight, other = await b.hold(connection), await b.hold(connection)
    await connection.execute(
        "UPDATE jobqueue_job SET cancel_requested_at = now() WHERE id = %s", [inflight.claim.id]
    )
    await b.heartbeat.beat()
    assert b.executor.stopped == [(inflight.claim.id, "cancel")]
    assert inflight.control.cancelled
    assert not other.control.cancelled


@pytest.mark.spec("S124", "A24")
async def test_a_cancel_is_heard_after_a_beat_whose_answer_was_lost(bench, connection):
    b = bench()
    inflight = await b.hold(connection)
    await b.heartbeat.beat()
    await connection.execute("UPDATE jobqueue_job SET cancel_requested_at = now()")
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'jobqueue beat' AND datname = current_database()"
    )
    with contextlib.suppress(psycopg.OperationalError):
        await b.heartbeat.beat()
    await b.heartbeat.beat()
    assert b.executor.stopped[0] == (inflight.claim.id, "cancel")


@pytest.mark.spec("S120")
async def test_a_handler_that_ignores_its_stop_is_marked_on_its_row(bench, connection):
    b = bench(replace(CALM, cancel_seconds=0.05))
    inflight = await b.hold(connection)
    b.executor.stop(inflight, "timeout")
    inflight.stop_requested_at -= 7
    await b.heartbeat.beat()
    row = await job_row(connection, inflight.claim.id)
    assert row["not_ending_since"] is not None
    waited = await one(
        connection,
        "SELECT extract(epoch FROM clock_timestamp() - not_ending_since)::float FROM jobqueue_job",
    )
    assert waited >= 7


@pytest.mark.spec("S95", "A10")
async def test_a_failed_beat_is_repeated_after_a_quarter(bench, connection, monkeypatch):
    b = bench(settings(heartbeat_seconds=2.0, lease_seconds=20.0))
    starts = []

    async def fail():
        starts.append(now())
        raise ConnectionError("weather")

    monkeypatch.setattr(b.heartbeat, "beat", fail)
    task = asyncio.create_task(b.heartbeat.run())
    await until(lambda: len(starts) >= 4)
    task.cancel()
    await asyncio.wait({task})
    gaps = [after - before for before, after in pairwise(starts)]
    assert min(gaps) >= 2.0 / 4 * 0.9
    assert sum(gaps) / len(gaps) < 2.0  # not a whole interval each


@pytest.mark.spec("S94", "A11", "S96")
async def test_a_beat_has_one_budget_whatever_it_waits_for(bench, connection, connect):
    b = bench(settings(heartbeat_seconds=1.0, lease_seconds=20.0))
    await b.heartbeat.beat()  # registers this worker, and connects
    blocker = await connect()
    async with blocker.transaction():
        await blocker.execute("LOCK TABLE jobqueue_worker IN ACCESS EXCLUSIVE MODE")
        start = now()
        with pytest.raises(Exception, match="no answer"):
            await b.heartbeat.beat()
        assert now() - start < b.settings.beat_budget_seconds + 1.5
    await until(lambda: succeeds(b))


async def succeeds(b):
    """Whether a beat does; to connect anew may take longer than the budget of one."""
    try:
        await b.heartbeat.beat()
    except CallTimeout:
        return False
    return True


@pytest.mark.spec("S93")
async def test_an_unregistered_worker_registers_again(bench, connection):
    b = bench()
    await b.heartbeat.beat()
    assert await one(connection, "SELECT count(*) FROM jobqueue_worker") == 1
    assert b.left == []


@pytest.mark.spec("S152")
async def test_a_certificate_of_death_makes_it_leave(bench, connection):
    b = bench()
    await b.heartbeat.beat()
    await connection.execute("UPDATE jobqueue_worker SET died_at = now()")
    await b.heartbeat.beat()
    assert b.left == ["somebody certified this process as dead"]


@pytest.mark.spec("S48", "A9", "D85")
async def test_the_fifth_bug_in_a_row_ends_the_service(bench, monkeypatch):
    b = bench(settings(heartbeat_seconds=0.05))

    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(b.heartbeat, "on_beat", broken)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(b.heartbeat.run(), 20)


@pytest.mark.spec("S116")
async def test_hints_in_a_storm_make_few_beats(bench, connection):
    b = bench(settings(heartbeat_seconds=5.0, lease_seconds=30.0))
    task = asyncio.create_task(b.heartbeat.run())
    start, end = now(), now() + 0.5
    while now() < end:
        b.heartbeat.request_beat()
        await asyncio.sleep(0)
    took = now() - start
    task.cancel()
    await asyncio.wait({task})
    assert 2 <= b.beats <= took / LEAST_SECONDS + 2


@pytest.mark.spec("S106")
async def test_notes_for_operators_are_written_after_a_beat_and_kept_until_then(
    bench, connection, monkeypatch
):
    b = bench()
    b.heartbeat.notes.append(Note(job=5, kind="blocked_loop", note="here"))
    task = asyncio.create_task(b.heartbeat.run())
    await until(lambda: not b.heartbeat.notes)
    task.cancel()
    await asyncio.wait({task})
    assert await one(connection, "SELECT note FROM jobqueue_jobevent WHERE job = 5") == "here"


@pytest.mark.spec("S152", "S98")
async def test_who_was_certified_dead_has_lost_all_its_tokens(bench, connection):
    b = bench()
    await b.heartbeat.beat()
    inflight = [await b.hold(connection) for _ in range(3)]
    b.registry.end(inflight[2])  # its outcome is on its way, fenced like any other
    await connection.execute("UPDATE jobqueue_worker SET died_at = clock_timestamp()")
    await b.heartbeat.beat()
    assert [each.lost for each in inflight] == [True, True, False]
    assert b.executor.stopped == [(each.claim.id, "lease") for each in inflight[:2]]
    assert len(b.left) == 1


# The trust, without a database: the clock is the loop's.


class TrustBench:
    def __init__(self, config=SHORT):
        self.registry = InFlightJobs(10)
        self.executor = StoppingExecutor(now, config.cancel_seconds)
        self.lease_guard = LeaseGuard(config, self.registry, self.executor)


@pytest.mark.spec("S104", "S105")
async def test_a_handler_is_stopped_while_its_lease_still_holds():
    b = TrustBench()
    early = b.lease_guard.stop_seconds - 1
    inflight = hold(b.registry, trusted_from=now() - early)
    assert b.lease_guard.check() > now()
    assert b.executor.stopped == []
    inflight.trusted_from = now() - b.lease_guard.stop_seconds
    b.lease_guard.check()
    assert b.executor.stopped == [(1, "lease")]
    b.lease_guard.check()
    assert len(b.executor.stopped) == 1


@pytest.mark.spec("S104", "S99")
async def test_a_handler_that_has_ended_needs_no_trust():
    b = TrustBench()
    inflight = hold(b.registry, trusted_from=now() - 100)
    b.registry.end(inflight)
    b.lease_guard.check()
    assert b.executor.stopped == []


@pytest.mark.spec("S52", "S104")
async def test_a_claim_whose_answer_took_long_is_looked_at_in_time():
    b = TrustBench()
    task = asyncio.create_task(b.lease_guard.run())
    await asyncio.sleep(0)
    hold(b.registry, trusted_from=now() - b.lease_guard.stop_seconds)
    await until(lambda: b.executor.stopped)
    task.cancel()
    await asyncio.wait({task})


# The sums.

beats = st.floats(0.05, 60)


@pytest.mark.spec("S97", "S106", "S151")
@given(beat=beats, cancel=st.floats(0, 60), more=st.floats(1.0, 3.0))
def test_every_lease_that_is_allowed_outlives_two_failed_beats_and_the_clean_up(beat, cancel, more):
    first = Settings(heartbeat_seconds=beat, cancel_seconds=cancel)
    # The margin is a thirtieth of the lease itself: the least lease is a fixed point.
    least = (first.least_lease_seconds - first.lease_margin_seconds) * 30 / 29
    s = replace(first, lease_seconds=least * more)
    assert s.lease_seconds >= s.least_lease_seconds - 1e-6
    # Beats are sent every `beat`; each of F + 1 takes its whole budget, and a quarter's wait.
    sent = beat + (TOLERATED_FAILED_BEATS + 1) * (s.beat_budget_seconds + beat / 4)
    stop = s.lease_seconds - s.lease_margin_seconds - s.cancel_seconds
    assert sent <= stop + 1e-6
    watchdog = Watchdog(
        s, InFlightJobs(1), on_signal=lambda number: None, on_block=lambda *facts: None
    )
    limit = 2 * watchdog.lag_seconds
    assert limit > watchdog.lag_seconds  # its own sampling
    assert watchdog.lag_seconds + beat < s.lease_seconds


@pytest.mark.spec("D118", "S104")
async def test_a_row_locked_past_its_lease_keeps_its_holder_and_is_renewed_once_the_lock_goes(
    bench, connection, connect
):
    """The leader sweeps all the while: it cannot take a locked row, and comes too late after it."""
    b = bench(replace(CALM, lease_seconds=0.6))
    inflight = await b.hold(connection)
    other, swept = await connect(), []

    async def sweep():
        lapsed = await reclaims.lapsed(connection, 100, set())
        verdicts = [reclaims.Verdict(row.id, row.token, 0.0) for row in lapsed]
        swept.extend(await reclaims.reclaim(connection, verdicts, "leader") if verdicts else [])

    lapsed = "SELECT lease_expires_at < clock_timestamp() - interval '0.3 s' FROM jobqueue_job"
    task = asyncio.create_task(b.heartbeat.run())
    try:
        async with other.transaction():
            await other.execute("SELECT FROM jobqueue_job FOR UPDATE")
            await until(lambda: b.beats)
            await until(lambda: _and_sweep(connection, lapsed, sweep))
            beats = b.beats
            await until(lambda: b.beats >= beats + 3, seconds=4)  # not one in five seconds
        kept = "SELECT lease_expires_at > clock_timestamp() FROM jobqueue_job"
        await until(lambda: one(connection, kept), seconds=4)
        await sweep()
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert swept == []
    assert b.executor.stopped == []
    assert (await job_row(connection, inflight.claim.id))["lease_token"] == inflight.token


async def _and_sweep(connection, fact, sweep):
    await sweep()
    return await one(connection, fact)
