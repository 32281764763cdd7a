"""Everything at once, at random: whatever strikes, the books are right in the end.

SOUP_SECONDS says how long (600), SOUP_SEED which random numbers.
"""

import os
import uuid

import pytest
import pytest_asyncio

from tests.processes.soup import WORKERS, Soup
from tests.processes.weather import (
    EFFECTS_WITHOUT_ATTEMPT,
    SUCCESSES_WITHOUT_EFFECT,
    UNFINISHED,
    Site,
    server,
    sky,
)
from tests.waiting import until

__all__ = ["server", "sky"]
SECONDS = float(os.environ.get("SOUP_SECONDS", "600"))
pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS * 2 + 240)]

# As in `weather`, for jobs that may have ended before their first attempt.
ATTEMPTS_NOT_COUNTED_OF_ANY = """
SELECT count(*) FROM jobqueue_job j WHERE (j.attempts, j.attempts) <> (
    SELECT count(*), coalesce(max(a.number), 0) FROM jobqueue_attempt a WHERE a.job_id = j.id)
"""
SUCCESSES_NOT_ONCE = """
SELECT count(*) FROM jobqueue_job j WHERE j.state = 'SUCCEEDED' AND 1 <> (
    SELECT count(*) FROM jobqueue_attempt a WHERE a.job_id = j.id AND a.outcome = 'SUCCEEDED'
    AND a.number = j.attempts)
"""
ATOMIC_EFFECTS_NOT_ONCE = """
SELECT count(*) FROM jobqueue_job j WHERE j.task LIKE '%.atomic' AND
    (j.state = 'SUCCEEDED')::int <> (SELECT count(*) FROM effect e WHERE e.job = j.id)
"""


@pytest_asyncio.fixture
async def site(sky, tmp_path):
    site = Site(sky, tmp_path)
    yield site
    await site.end()


@pytest.mark.spec("S47", "S104", "S65", "S67")
async def test_whatever_strikes_the_books_are_right_in_the_end(site):
    seed = os.environ.get("SOUP_SEED", uuid.uuid4().hex)
    print(f"SOUP_SEED={seed}")
    soup = Soup(site, seed)
    await soup.keep_running()
    for worker in site.workers:
        await worker.started()
    await soup.cook(SECONDS)
    await until(lambda: all_final(site), seconds=120, every=0.2)
    await check_books(site)
    for worker in site.workers:
        assert "service_failed" not in worker.log.read_text(), worker.log
    last = [worker for worker in site.workers if worker.lives]
    assert len(last) == WORKERS
    for worker in last:
        assert await worker.stop() in (0, 6), worker.log.read_text()[-4000:]
    print(dict(soup.struck), f"{site.jobs} jobs, {len(site.workers)} workers")


async def all_final(site):
    return await site.sky.ask(UNFINISHED) == 0


async def check_books(site):
    ask = site.sky.ask
    assert await ask("SELECT count(*) FROM jobqueue_job") >= site.jobs > 0
    # Operators cancel and their jobs may die; those that only the weather met all succeed.
    lost = "SELECT count(*) FROM jobqueue_job WHERE max_attempts = 50 AND state <> 'SUCCEEDED'"
    assert await ask(lost) == 0
    for fault in (
        ATTEMPTS_NOT_COUNTED_OF_ANY,
        SUCCESSES_NOT_ONCE,
        EFFECTS_WITHOUT_ATTEMPT,
        SUCCESSES_WITHOUT_EFFECT,
        ATOMIC_EFFECTS_NOT_ONCE,
    ):
        assert await ask(fault) == 0, fault
