"""Workers in real processes, under load, while their database suffers."""

import asyncio
import contextlib

import psycopg
import pytest
import pytest_asyncio

from project import postgres
from tests.processes.weather import NAME, ROLE, UNFINISHED, Site, server, sky
from tests.waiting import until

__all__ = ["server", "sky"]
pytestmark = pytest.mark.timeout(180)


@pytest_asyncio.fixture
async def site(sky, tmp_path):
    site = Site(sky, tmp_path)
    yield site
    await site.end()
    for worker in site.workers:
        print(worker.log.read_text(errors="replace")[-6000:])


async def under_load(site, fault, seconds=2.0):
    load = asyncio.ensure_future(site.feed(seconds))
    await asyncio.sleep(0)
    await until(lambda: _some_succeeded(site), every=0.1)
    await fault()
    await load


async def _some_succeeded(site):
    with contextlib.suppress(psycopg.OperationalError):
        return await site.sky.ask("SELECT EXISTS (SELECT FROM jobqueue_attempt)")


async def clean_end(site):
    """All is well, and the workers leave cleanly."""
    await site.check()
    for worker in site.workers:
        code = await worker.stop()
        (report,) = worker.events("worker_stopped")
        assert code == (6 if report["unrecorded"] else 0), worker.log.read_text()[-4000:]
        assert report["claimed"] == sum(
            report[name] for name in ("completed", "interrupted", "returned", "unrecorded")
        )
        assert not worker.events("service_failed")
        assert "Traceback" not in worker.log.read_text()


def outages(worker):
    return len(worker.events("database_unreachable")), len(worker.events("database_recovered"))


async def all_back(worker):
    """Each service comes back by itself; the last one of them says so."""
    await until(lambda: outages(worker)[0] == outages(worker)[1], seconds=40)


@pytest.mark.spec("S47", "D36")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_restarts_of_the_server_cost_only_what_was_in_flight(site, mode):
    worker = await site.worker()

    async def restart():
        await asyncio.to_thread(site.sky.server.restart, mode)

    await under_load(site, restart)
    await all_back(worker)
    await clean_end(site)
    down, back = outages(worker)
    assert down == back <= 2


@pytest.mark.spec("S47", "S107")
@pytest.mark.parametrize("purpose", ["claim", "finish", "listen", "beat", "leader", "maintenance"])
async def test_terminated_sessions_are_replaced(site, purpose):
    await site.worker()
    ended = []

    async def terminate():
        for _ in range(5):
            ended.append(await asyncio.to_thread(site.sky.end_sessions, f"jobqueue {purpose}"))
            await asyncio.sleep(0.2)

    await under_load(site, terminate)
    assert sum(ended) > 0
    await clean_end(site)


@pytest.mark.spec("S47", "S53", "S69", "D13")
@pytest.mark.parametrize("fault", ["cut", "half_close", "swallow", "swallow_answers", "delay"])
async def test_whatever_the_network_does_every_job_ends_as_often_as_its_attempts_say(site, fault):
    worker = await site.worker()
    proxy = worker.proxy

    async def strike():
        for _ in range(2):
            match fault:
                case "delay":
                    proxy.delay = (0.05, 0.3)
                    await asyncio.sleep(1)
                case "swallow" | "swallow_answers":
                    setattr(proxy, fault, True)
                    await asyncio.sleep(1.0)
                    proxy.cut()
                case _:
                    getattr(proxy, fault)()
                    await asyncio.sleep(0.2)
            proxy.heal()
            await asyncio.sleep(0.3)

    await under_load(site, strike)
    await clean_end(site)


@pytest.mark.spec("S47")
async def test_a_read_only_primary_is_waited_out(site):
    worker = await site.worker()

    async def read_only():
        await site.sky.ask(f"ALTER DATABASE {NAME} SET default_transaction_read_only = on")
        await asyncio.to_thread(site.sky.end_sessions)
        await until(lambda: worker.events("database_unreachable"))
        await site.sky.ask(f"ALTER DATABASE {NAME} RESET default_transaction_read_only")

    await under_load(site, read_only)
    await until(lambda: worker.events("database_recovered"), seconds=40)
    await clean_end(site)


@pytest.mark.spec("S47")
async def test_too_many_connections_are_waited_out(site):
    worker = await site.worker()

    async def crowd():
        await site.sky.ask(f"ALTER ROLE {ROLE} CONNECTION LIMIT 0")
        await asyncio.to_thread(site.sky.end_sessions)
        await until(lambda: worker.events("database_unreachable"))
        await asyncio.sleep(0.5)
        await site.sky.ask(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")

    await under_load(site, crowd)
    await all_back(worker)
    await clean_end(site)
    down, back = outages(worker)
    assert down == back <= 3


@pytest.mark.spec("S47", "D43")
async def test_short_time_outs_of_statements_and_locks_are_never_fatal(site):
    await site.sky.ask(f"ALTER ROLE {ROLE} SET statement_timeout = '500ms'")
    await site.sky.ask(f"ALTER ROLE {ROLE} SET lock_timeout = '100ms'")
    await site.worker()

    async def lock():
        with site.sky.connect() as stranger, stranger.transaction():
            await asyncio.to_thread(
                stranger.execute, "LOCK TABLE jobqueue_job IN SHARE ROW EXCLUSIVE MODE"
            )
            await asyncio.sleep(1.5)

    await under_load(site, lock)
    await clean_end(site)


@pytest.mark.spec("S47", "D46")
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_deadlocks_and_serialization_failures_are_tried_again(site, isolation):
    await site.sky.ask(f"ALTER ROLE {ROLE} SET default_transaction_isolation = '{isolation}'")
    await site.worker()
    await site.worker("--no-leader")

    async def storm(order):
        with site.sky.connect() as stranger:
            for _ in range(6):
                with contextlib.suppress(psycopg.OperationalError):
                    await asyncio.to_thread(stranger.execute, TOUCH.format(order=order))

    async def storms():
        await asyncio.gather(storm("id"), storm("id DESC"))

    await under_load(site, storms)
    await clean_end(site)


# Rows locked one after the other, in an order of a stranger's own.
TOUCH = """
DO $$
DECLARE one record;
BEGIN
    FOR one IN SELECT id FROM jobqueue_job ORDER BY {order} LIMIT 400 LOOP
        UPDATE jobqueue_job SET tenant = 'x' WHERE id = one.id;
    END LOOP;
END $$
"""


@pytest.mark.spec("D37")
async def test_a_time_out_of_idle_sessions_is_no_outage(site):
    await site.sky.ask(f"ALTER ROLE {ROLE} SET idle_session_timeout = '450ms'")
    worker = await site.worker()
    for _ in range(3):
        await site.enqueue()
        await asyncio.sleep(0.8)
    await site.check()
    assert await site.sky.ask("SELECT max(attempts) FROM jobqueue_job") == 1
    assert outages(worker) == (0, 0)
    await clean_end(site)


@pytest.mark.spec("S231")
@pytest.mark.parametrize(
    ("options", "purposes"),
    [
        (["--no-leader"], ["beat", "claim", "finish", "listen"]),
        ([], ["beat", "claim", "finish", "leader", "listen", "maintenance"]),
    ],
)
async def test_a_worker_uses_four_connections_and_two_more_while_it_leads(site, options, purposes):
    worker = await site.worker(*options)
    await site.enqueue("idle", 50)
    await site.check()
    # The thread in which the start was prepared is closed when it has been idle for a while.
    await until(lambda: [p for p in worker.proxy.purposes() if p] == purposes)
    assert worker.proxy.purposes().count("") <= 1
    await clean_end(site)


@pytest.mark.spec("S231", "D41")
async def test_the_connections_of_handlers_are_bounded_by_the_concurrency(site):
    worker = await site.worker("--no-leader", "--concurrency", "3")
    await site.enqueue("plain", 30, 0.02)
    await site.enqueue("coroutine", 30, 0.02)
    most = 0
    while not await _unfinished(site, 0):
        most = max(most, len(worker.proxy.purposes()))
    assert most <= 4 + 3
    await clean_end(site)


@pytest.mark.spec("S104", "D20", "S103")
async def test_an_outage_longer_than_the_lease_stops_the_handlers_and_the_worker_goes_on(site):
    worker = await site.worker()
    await site.enqueue("idle", 3, 60.0)
    await until(lambda: len(worker.events("idle_begun")) == 3)
    worker.proxy.refuse = True
    worker.proxy.cut()
    await until(lambda: len(worker.events("lease_not_renewed")) == 3, seconds=30)
    # Their leases have not lapsed yet: nobody else can hold the jobs.
    lapsed = "SELECT count(*) FROM jobqueue_job WHERE lease_expires_at < clock_timestamp()"
    assert await site.sky.ask(lapsed) == 0
    await until(lambda: len(worker.events("outcome_not_recorded")) == 3, seconds=30)
    await site.sky.ask("UPDATE jobqueue_job SET args = '[0]'")
    worker.proxy.heal()
    await until(lambda: worker.events("database_recovered"))
    await clean_end(site)
    assert outages(worker) == (1, 1)


@pytest.mark.spec("S143", "S145", "S149", "S154")
async def test_a_stop_while_the_database_is_away_is_bounded_and_logged_in_a_few_lines(site):
    worker = await site.worker(DRAIN_SECONDS=0, CANCEL_SECONDS=0.5)
    await site.enqueue("idle", 3, 60.0)
    await until(lambda: len(worker.events("idle_begun")) == 3)
    worker.proxy.refuse = True
    worker.proxy.cut()
    await until(lambda: worker.events("database_unreachable"))
    assert await worker.stop() == 6  # stopped, but not all was recorded
    (report,) = worker.events("worker_stopped")
    assert (report["claimed"], report["unrecorded"]) == (3, 3)
    (left,) = worker.events("jobs_unrecorded")
    assert len(left["jobs"]) == 3
    assert len(worker.events("database_unreachable")) == 1
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.spec("D20", "S95")
async def test_an_outage_shorter_than_the_lease_costs_no_attempt(site):
    worker = await site.worker()
    await site.enqueue("idle", 3, 3.0)
    await until(lambda: len(worker.events("idle_begun")) == 3)
    worker.proxy.refuse = True
    worker.proxy.cut()
    await until(lambda: worker.events("database_unreachable"))
    worker.proxy.heal()
    await clean_end(site)
    assert await site.sky.ask("SELECT max(attempts) FROM jobqueue_job") == 1
    assert not worker.events("lease_not_renewed")


@pytest.mark.spec("S233", "D25", "D26")
async def test_a_listener_that_lost_its_session_hears_the_next_job_at_once(site):
    worker = await site.worker(POLL_SECONDS=120)
    await until(lambda: _wake_is(site, "notified"), every=0.1)
    assert await asyncio.to_thread(site.sky.end_sessions, "jobqueue listen") == 1
    await until(lambda: _listening(site), every=0.1)
    await site.enqueue("idle")
    await site.sky.ask("SELECT pg_notify('jobqueue', '{\"kind\": \"ready\"}')")
    await until(lambda: _unfinished(site, 0), seconds=15)
    await all_back(worker)
    await clean_end(site)
    assert outages(worker) == (1, 1)


async def _wake_is(site, wake):
    return await site.sky.ask("SELECT wake FROM jobqueue_worker") == wake


async def _listening(site):
    listening = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'jobqueue listen'"
    )
    return await site.sky.ask(listening)


async def _unfinished(site, count):
    return await site.sky.ask(UNFINISHED) == count


@pytest.mark.spec("D22", "S37", "S44")
async def test_two_workers_share_the_work_and_neither_takes_more_than_its_slots(site):
    for _ in range(2):
        await site.worker("--concurrency", "4")
    await site.enqueue("idle", 40, 0.3)
    await site.sky.ask("SELECT pg_notify('jobqueue', '{\"kind\": \"ready\"}')")
    most = "SELECT max(n) FROM (SELECT count(*) n FROM jobqueue_job WHERE state = 'RUNNING' {}) x"
    seen = []
    while not await _unfinished(site, 0):
        seen.append(await site.sky.ask(most.format("GROUP BY worker")) or 0)
    assert max(seen) == 4
    await clean_end(site)
    assert await site.sky.ask("SELECT count(DISTINCT worker) FROM jobqueue_attempt") == 2


@pytest.mark.spec("D29", "S44", "S60")
async def test_a_burst_fills_every_slot_and_each_freed_one_claims_at_once(site):
    await site.worker(POLL_SECONDS=60, CONCURRENCY=10)
    await until(lambda: _wake_is(site, "notified"), every=0.1)
    await site.enqueue("idle", 100, 0.2)
    await site.sky.ask("SELECT pg_notify('jobqueue', '{\"kind\": \"ready\"}')")
    await until(lambda: _running(site, 10), every=0.01)
    await until(lambda: _unfinished(site, 0), seconds=30)
    await clean_end(site)


@pytest.mark.spec("D24", "S67")
async def test_a_row_deleted_under_a_running_handler_is_one_line_and_no_harm(site):
    worker = await site.worker()
    await site.enqueue("idle", 1, 30.0)
    await until(lambda: worker.events("idle_begun"))
    await site.sky.ask("DELETE FROM jobqueue_job")
    await until(lambda: worker.events("lease_lost"))
    site.jobs = 0
    await site.enqueue("plain", 3)
    await clean_end(site)
    assert len(worker.events("lease_lost")) == 1
    assert await site.sky.ask("SELECT count(*) FROM jobqueue_job") == 3


async def more_connections(site, monkeypatch):
    """For more workers than a server of the default size has room for."""
    monkeypatch.setitem(postgres.SETTINGS, "max_connections", "600")
    await asyncio.to_thread(site.sky.server.restart, "fast")


@pytest.mark.spec("D21", "S36")
@pytest.mark.parametrize(
    ("workers", "jobs"), [(3, 600), pytest.param(30, 50_000, marks=pytest.mark.long)]
)
@pytest.mark.timeout(1800)
async def test_of_many_workers_and_tiny_jobs_each_runs_once(site, monkeypatch, workers, jobs):
    if workers > 10:
        await more_connections(site, monkeypatch)
    await site.enqueue("plain", jobs)
    for _ in range(workers):
        await site.start("--concurrency", "4")
    await until(lambda: _unfinished(site, 0), seconds=1500, every=0.5)
    await clean_end(site)
    assert await site.sky.ask("SELECT count(*) FROM effect") == jobs
    assert await site.sky.ask("SELECT max(attempts) FROM jobqueue_job") == 1


@pytest.mark.long
@pytest.mark.spec("D32", "S45")
@pytest.mark.timeout(900)
async def test_sixty_idle_workers_and_a_job_a_second_cost_few_claims_and_no_lock_waits(
    site, monkeypatch
):
    """All on one machine, each with the default poll and its own connections."""
    await more_connections(site, monkeypatch)
    calm = {"POLL_SECONDS": 5, "HEARTBEAT_SECONDS": 5, "LEASE_SECONDS": 30}
    for _ in range(60):
        worker = await site.start("--concurrency", "4", **calm)
    await until(lambda: _wake_count(site, 60), seconds=600, every=1.0)
    started = await site.sky.ask(CLAIMS)
    for _ in range(30):
        await site.enqueue("idle")
        await site.sky.ask(NEW_JOB)
        await asyncio.sleep(1)
    looks = await site.sky.ask(CLAIMS) - started
    waits = await site.sky.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    )
    print(f"60 workers, 30 jobs: {looks} index scans of the ready index, {waits} lock waits")
    # Each wake is one round and, close behind it, one more; each poll asks each of three queues.
    assert looks < 60 * 30 * 2.5 + 60 * 3 * 60 / 4
    assert waits == 0
    await until(lambda: _unfinished(site, 0), seconds=60)
    assert worker.lives


async def _wake_count(site, count):
    return (
        await site.sky.ask("SELECT count(*) FROM jobqueue_worker WHERE wake = 'notified'") == count
    )


NEW_JOB = """
SELECT pg_notify('jobqueue', '{"kind": "ready", "queue": "default", "priority": 0}')
"""
CLAIMS = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'jobqueue_job_claimable'"


async def _running(site, count):
    found = await site.sky.ask("SELECT count(*) FROM jobqueue_job WHERE state = 'RUNNING'")
    return found == count
