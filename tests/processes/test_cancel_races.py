"""An operator's cancel against finish, retry, reclaim and shutdown, thousands of times."""

import asyncio
import json
import os
import random
import subprocess
import sys

import pytest
import pytest_asyncio

from tests.children import ROOT
from tests.processes.weather import NAME, SHORT, UNFINISHED, Site, server, sky
from tests.waiting import until

__all__ = ["server", "sky"]

# A start is a claim; both moments are taken under the row's lock, so their order is the real one.
STARTS_AFTER_A_CANCEL = """
SELECT count(*) FROM jobqueue_attempt a
JOIN jobqueue_jobevent c ON c.job = a.job_id AND c.kind = 'cancel' AND c.at < a.started_at
WHERE NOT EXISTS (
    SELECT FROM jobqueue_jobevent r
    WHERE r.job = a.job_id AND r.kind = 'retry' AND r.at > c.at AND r.at <= a.started_at)
"""
# The last attempt since the last retry, and whether a cancel came since.
STORY = """
WITH story AS (
    SELECT j.state, j.failures, j.max_attempts, last.outcome, EXISTS (
        SELECT FROM jobqueue_jobevent c WHERE c.job = j.id AND c.kind = 'cancel'
            AND c.at > COALESCE(begun.at, '-infinity')) AS cancelled
    FROM jobqueue_job j
    CROSS JOIN LATERAL (
        SELECT max(r.at) AS at FROM jobqueue_jobevent r WHERE r.job = j.id AND r.kind = 'retry'
    ) begun
    LEFT JOIN LATERAL (
        SELECT a.outcome FROM jobqueue_attempt a
        WHERE a.job_id = j.id AND a.started_at > COALESCE(begun.at, '-infinity')
        ORDER BY a.number DESC LIMIT 1
    ) last ON true
)
"""
STATES_THAT_DO_NOT_FIT = (
    STORY
    + """
SELECT count(*) FROM story WHERE NOT CASE state
    WHEN 'SUCCEEDED' THEN outcome = 'SUCCEEDED'
    WHEN 'DEAD' THEN outcome IN ('FAILED', 'TIMED_OUT', 'LOST') AND failures >= max_attempts
    WHEN 'CANCELLED' THEN cancelled AND outcome IS DISTINCT FROM 'SUCCEEDED'
    ELSE false END
"""
)
TALLY = (
    STORY
    + "SELECT string_agg(line, ', ') FROM (SELECT format('%s after %s: %s', state, "
    + ("COALESCE(outcome, 'no attempt'), count(*)) AS line FROM story GROUP BY state, outcome) t")
)
ATTEMPTS_NOT_COUNTED = """
SELECT count(*) FROM jobqueue_job j
WHERE j.attempts <> (SELECT count(*) FROM jobqueue_attempt a WHERE a.job_id = j.id)
   OR j.attempts <> COALESCE((
       SELECT max(a.number) FROM jobqueue_attempt a WHERE a.job_id = j.id), 0)
"""
# What was LOST may have had its effect; what succeeded must have, and nothing has two.
EFFECTS_THAT_DO_NOT_FIT = """
SELECT count(*) FROM jobqueue_attempt a
FULL JOIN effect e ON e.job = a.job_id AND e.attempt = a.number
WHERE a.token IS NULL OR (a.outcome = 'SUCCEEDED' AND e.job IS NULL)
   OR (a.outcome = 'FAILED' AND e.job IS NOT NULL)
"""


@pytest_asyncio.fixture
async def site(sky, tmp_path):
    site = Site(sky, tmp_path)
    yield site
    await site.end()


def operators(site, jobs):
    url = f"postgresql://postgres@/{NAME}?host={site.sky.parameters['host']}"
    with (site.folder / "operators.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, ROOT / "tests/processes/run_operator.py", str(jobs)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "DATABASE_URL": url,
                "DJANGO_SETTINGS_MODULE": "tests.processes.worker_settings",
                "JOBQUEUE": json.dumps(SHORT),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )


async def stop_and_start(site, operating):
    """One worker after the other leaves cleanly, in a hurry, or is killed."""
    codes = []
    while operating.poll() is None:
        worker = random.choice([worker for worker in site.workers if worker.lives])
        await asyncio.sleep(random.uniform(0.3, 1.0))
        replacement = await site.start(DRAIN_SECONDS=0.02, CANCEL_SECONDS=2)
        match random.choice(["term", "twice", "kill"]):
            case "term":
                codes.append(await worker.stop())
            case "twice":
                worker.process.terminate()
                codes.append(await worker.stop())
            case "kill":
                worker.process.kill()
                await asyncio.to_thread(worker.process.wait)
        await replacement.started()
    return codes


@pytest.mark.spec("S102", "S114", "S115", "S121", "S122", "S126", "S201", "D114", "A12", "A25")
@pytest.mark.parametrize("jobs", [480, pytest.param(8_000, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
async def test_each_cancelled_job_has_the_one_final_state_that_fits_what_ran(site, jobs):
    for _ in range(2):
        await site.worker(DRAIN_SECONDS=0.02, CANCEL_SECONDS=2)
    operating = operators(site, jobs)
    codes = await stop_and_start(site, operating)
    assert operating.returncode == 0, (site.folder / "operators.log").read_text()[-2000:]
    assert set(codes) <= {0}

    async def all_final():
        assert any(worker.lives for worker in site.workers)
        return await site.sky.ask(UNFINISHED) == 0

    await until(all_final, seconds=90, every=0.2)
    print(await site.sky.ask(TALLY))
    assert await site.sky.ask("SELECT count(*) FROM jobqueue_job") == jobs
    assert await site.sky.ask(STARTS_AFTER_A_CANCEL) == 0
    assert await site.sky.ask(STATES_THAT_DO_NOT_FIT) == 0
    assert await site.sky.ask(ATTEMPTS_NOT_COUNTED) == 0
    assert await site.sky.ask(EFFECTS_THAT_DO_NOT_FIT) == 0
    for worker in site.workers:
        assert not worker.events("service_failed")
        if worker.lives:
            assert await worker.stop() == 0
