"""A worker whose database is away, or not meant for it, at the start."""

import asyncio

import pytest
import pytest_asyncio

from tests.processes.weather import NAME, ROLE, Site, server, sky
from tests.waiting import until

__all__ = ["server", "sky"]
pytestmark = pytest.mark.timeout(120)


@pytest_asyncio.fixture
async def site(sky, tmp_path):
    site = Site(sky, tmp_path)
    yield site
    await site.end()


async def refused(site):
    """It ends by itself with exit code 1 and one sentence."""
    worker = await site.start()
    code = await asyncio.to_thread(worker.process.wait, 60)
    text = worker.log.read_text()
    assert code == 1, text
    assert "Traceback" not in text
    (sentence,) = [line for line in text.splitlines() if line.startswith("runworker: ")]
    return sentence


@pytest.mark.spec("S47", "D39", "S153")
async def test_a_wrong_password_ends_with_one_sentence(site):
    hba = site.sky.server.data / "pg_hba.conf"
    before = hba.read_text()
    try:
        hba.write_text(f"local all {ROLE} scram-sha-256\n{before}")
        await site.sky.ask("SELECT pg_reload_conf()")
        await until(lambda: _refuses_logins(site), every=0.1)
        sentence = await refused(site)
    finally:
        hba.write_text(before)
        await site.sky.ask("SELECT pg_reload_conf()")
    assert "no password supplied" in sentence or "password authentication failed" in sentence


async def _refuses_logins(site):
    import psycopg

    try:
        await asyncio.to_thread(site.sky.do, "SELECT 1", user=ROLE)
    except psycopg.OperationalError:
        return True
    return False


@pytest.mark.spec("S47", "D39")
@pytest.mark.parametrize("why", ["down", "crowded", "silent"])
async def test_a_database_that_is_away_at_the_start_is_waited_for(site, why):
    match why:
        case "crowded":
            await site.sky.ask(f"ALTER ROLE {ROLE} CONNECTION LIMIT 0")
        case "down":
            await asyncio.to_thread(site.sky.server.stop)
    worker = await site.start()
    if why == "silent":
        worker.proxy.swallow = True
    try:
        await until(lambda: worker.events("database_unreachable"), seconds=40)
        worker.proxy.heal()
        worker.proxy.cut()
    finally:
        if why == "down":
            await asyncio.to_thread(site.sky.server.start)
    await site.sky.ask(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")
    await worker.started()
    await site.enqueue("plain", 3)
    await site.check()
    assert len(worker.events("database_unreachable")) == 1
    assert await worker.stop() == 0


@pytest.mark.spec("S49", "D6")
async def test_a_worker_that_still_waits_for_its_database_exits_when_asked(site):
    worker = await site.start()
    worker.proxy.refuse = True
    await until(lambda: worker.events("database_unreachable"), seconds=40)
    assert await worker.stop() == 0
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.spec("S153", "D39")
async def test_max_runtime_bounds_the_wait_for_the_database_too(site):
    worker = await site.start("--until-idle", "--max-runtime", "1")
    worker.proxy.refuse = True
    assert await asyncio.to_thread(worker.process.wait, 40) == 4
    text = worker.log.read_text()
    assert "Traceback" not in text
    (end,) = worker.events("worker_stopped")
    assert (end["reason"], end["unrecorded"]) == ("max runtime", 0)


@pytest.mark.spec("D113")
async def test_the_documented_rights_suffice(site):
    worker = await site.worker()
    await site.enqueue("plain", 3)
    await site.enqueue("atomic", 3)
    await site.check()
    assert await worker.stop() == 0
    assert not worker.events("service_failed")
    owner = f"SELECT rolsuper FROM pg_roles WHERE rolname = '{ROLE}' -- in {NAME}"
    assert await site.sky.ask(owner) is False
