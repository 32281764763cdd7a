"""Credentials that rotate under running workers."""

import pytest
import pytest_asyncio

from tests.processes.weather import GRANTS, ROLE, Site, server, sky
from tests.waiting import until

__all__ = ["server", "sky"]
NEXT = "app_next"
LEADER = "SELECT holder::text FROM jobqueue_leaderlease WHERE expires_at > clock_timestamp()"
pytestmark = [pytest.mark.timeout(180), pytest.mark.spec("D125")]


@pytest_asyncio.fixture
async def site(sky, tmp_path, monkeypatch):
    credentials = tmp_path / "credentials"
    credentials.write_text(ROLE)
    monkeypatch.setenv("CREDENTIALS", str(credentials))
    monkeypatch.setenv("ENGINE", "tests.processes.rotating")
    sky.do(GRANTS.replace(ROLE, NEXT))
    site = Site(sky, tmp_path)
    yield site
    await site.end()
    sky.do(f"ALTER ROLE {ROLE} LOGIN; DROP OWNED BY {NEXT}; DROP ROLE {NEXT}")
    for worker in site.workers:
        print(worker.log.read_text(errors="replace")[-6000:])


async def test_a_rotation_ends_no_worker_and_runs_no_job_twice(site, tmp_path):
    workers = [await site.worker(), await site.worker()]
    await until(lambda: site.sky.ask(LEADER))
    await site.feed(1.0)
    (tmp_path / "credentials").write_text(NEXT)
    site.sky.do(f"ALTER ROLE {ROLE} NOLOGIN")
    site.sky.end_sessions()
    await site.feed(1.0)
    first = await site.sky.ask(LEADER)
    leading = next(w for w in workers if w.events("worker_started")[0]["worker"] == first)
    assert await leading.stop() == 0
    site.workers.remove(leading)
    await until(lambda: leads_another(site, first), seconds=40)
    await site.feed(0.5)
    await site.check()
    assert await site.sky.ask("SELECT count(*) FROM pg_stat_activity WHERE usename = %s", ROLE) == 0
    assert await site.workers[0].stop() == 0
    assert await site.sky.ask("SELECT count(*) FROM jobqueue_attempt WHERE outcome = 'LOST'") == 0
    await leading.proxy.__aexit__()


async def leads_another(site, first):
    leader = await site.sky.ask(LEADER)
    return leader and leader != first
