"""The statements as strings: valid, planned on indexes, and with the right clock."""

import importlib
import pkgutil
import re

import pytest
import pytest_asyncio
from psycopg import AsyncClientCursor
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from jobqueue import store
from jobqueue.insight import stats_sql
from jobqueue.operations import sql
from jobqueue.store import finish

PARAMETER = re.compile(r"%\((\w+)\)s")
TABLES = ("jobqueue_job", "jobqueue_attempt", "jobqueue_jobevent", "jobqueue_scheduletick")
FILL = """
INSERT INTO jobqueue_job (task, state, finished_at, enqueued_at, attempts)
SELECT 'x.y', (ARRAY['SUCCEEDED', 'DEAD', 'CANCELLED'])[g % 3 + 1], now() - g * interval '1 s',
    now() - interval '9 days', 1
FROM generate_series(1, 20000) g;
INSERT INTO jobqueue_job (task, state, run_at)
SELECT 'x.y', CASE WHEN g % 2 = 0 THEN 'READY' ELSE 'SCHEDULED' END, now() + g * interval '1 s'
FROM generate_series(1, 2000) g;
INSERT INTO jobqueue_attempt (token, job_id, number, outcome, started_at, finished_at)
SELECT gen_random_uuid(), id, 1, 'FAILED', now(), now() FROM jobqueue_job WHERE attempts = 1;
INSERT INTO jobqueue_jobevent (job, kind, at)
SELECT id, 'cancel', now() - id * interval '1 s' FROM jobqueue_job;
INSERT INTO jobqueue_schedule (name, task, cron) SELECT g::text, 'x.y', '* * * * *'
FROM generate_series(1, 20) g;
INSERT INTO jobqueue_scheduletick (schedule_id, tick_at)
SELECT s.id, now() - g * interval '1 min' FROM jobqueue_schedule s, generate_series(1, 500) g;
ANALYZE jobqueue_job, jobqueue_attempt, jobqueue_jobevent, jobqueue_schedule, jobqueue_scheduletick
"""

# What the planner may believe: an autovacuum may have looked at any moment, or not yet.
BELIEFS = {
    "as it is": "",
    "when much ran": """
INSERT INTO jobqueue_job (task, state, worker, lease_token, lease_expires_at, claimed_at)
SELECT 'x.y', 'RUNNING', gen_random_uuid(), gen_random_uuid(), now(), now()
FROM generate_series(1, 5000);
ANALYZE jobqueue_job;
DELETE FROM jobqueue_job;
""",
    "when much waited": """
INSERT INTO jobqueue_job (task) SELECT 'x.y' FROM generate_series(1, 5000);
ANALYZE jobqueue_job;
DELETE FROM jobqueue_job;
""",
}


def fill(analysed: str) -> str:
    """The rows, with the statistics of such a moment."""
    rows, _, analyze = FILL.rpartition("ANALYZE")
    return BELIEFS[analysed] + rows + (f"ANALYZE{analyze}" if not BELIEFS[analysed] else "")


def statements():
    found = {}
    for module in pkgutil.iter_modules(store.__path__):
        home = importlib.import_module(f"jobqueue.store.{module.name}")
        for name, text in vars(home).items():
            if name.isupper() and isinstance(text, str) and text.startswith("\n"):
                found[f"{module.name}.{name}"] = text
    return found


STATEMENTS = statements()


def numbered(text):
    """The statement with numbered parameters, and how many there are."""
    names = list(dict.fromkeys(PARAMETER.findall(text)))
    return PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text), len(names)


@pytest_asyncio.fixture
async def filled(connection, request):
    await connection.execute(fill(getattr(request, "param", "as it is")))
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    return connection


@pytest.mark.spec("S10", "S179")
async def test_each_statement_is_valid_and_its_generic_plan_reads_no_whole_table(filled):
    scans = {}
    for name, text in STATEMENTS.items():
        statement, count = numbered(text)
        await filled.execute(f"PREPARE s AS {statement}")
        values = f"({', '.join(['NULL'] * count)})" if count else ""
        cursor = await filled.execute(f"EXPLAIN EXECUTE s{values}")
        plan = "\n".join(line for (line,) in await cursor.fetchall())
        whole = [table for table in TABLES if re.search(rf"Seq Scan on {table}\b", plan)]
        if whole:
            scans[name] = whole
        await filled.execute("DEALLOCATE s")
    assert scans == {}


@pytest.mark.spec("S179")
@pytest.mark.parametrize("filled", BELIEFS, indirect=True)
async def test_the_sweep_finds_lapsed_jobs_along_an_index_whenever_the_table_was_analysed(filled):
    cursor = AsyncClientCursor(filled)
    await cursor.execute(f"EXPLAIN {STATEMENTS['reclaims.LAPSED']}", {"skip": [], "limit": 100})
    plan = "\n".join(line for (line,) in await cursor.fetchall())
    assert "Seq Scan on jobqueue_job" not in plan


# What the admin, its dashboard and the operators' calls send, each with usual values.
OPERATORS = {
    f"{module.__name__}.{name}": text
    for module in (stats_sql, sql)
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and text.startswith("\n") and text.endswith("\n")
}
USUAL = {
    "limit": 500,  # as small compared with this table as the real one with millions
    "sample": 1_000,
    "waiting": 100,
    "lease": 60,
    "known": ["default"],
    "ids": [1, 2, 3],
    "workers": [],
    "since": None,
    "state": "DEAD",
    "age": 86_400,
    "priority": 3,
    "queue": "mail",
    "as_of": None,
    "by": "ann",
    "note": "",
    "kind": "cancel",
}


@pytest.mark.spec("S179")
@pytest.mark.parametrize("filled", BELIEFS, indirect=True)
async def test_what_operators_ask_reads_no_whole_table(filled):
    scans = {}
    for name, text in OPERATORS.items():
        cursor = AsyncClientCursor(filled)
        await cursor.execute(f"EXPLAIN {text}", USUAL)
        plan = "\n".join(line for (line,) in await cursor.fetchall())
        whole = [table for table in TABLES if re.search(rf"Seq Scan on {table}\b", plan)]
        if whole:
            scans[name] = whole
    assert len(OPERATORS) > 10
    assert scans == {}


BOUNDS = r"(run_at|hold_until|lease_expires_at|expires_at|parked_at|finished_at|last_seen_at|\bat)"


@pytest.mark.spec("S5")
@pytest.mark.parametrize(
    "module", ["due_work", "promotion", "reclaims", "sweeps", "history_pruning"]
)
def test_what_selects_rows_is_compared_with_a_time_that_stands_still(module):
    for name, text in STATEMENTS.items():
        if name.startswith(f"{module}."):
            # What follows from the chosen rows (a CASE) is decided at the real moment.
            conditions = re.sub(r"CASE.*?END", "", text, flags=re.DOTALL)
            assert not re.search(rf"{BOUNDS} <= clock_timestamp\(\)", conditions), name


@pytest.mark.spec("S5", "S4")
def test_no_statement_is_given_a_moment_by_the_process():
    moments = {
        name: sorted(set(PARAMETER.findall(text)) & {"now", "at", "started_at", "finished_at"})
        for name, text in STATEMENTS.items()
        if name.split(".")[0] != "schedules"  # a tick is a moment of the calendar
    }
    assert not {name: words for name, words in moments.items() if words}


@pytest.mark.spec("S92", "S201", "A1")
@pytest.mark.parametrize("module", ["heartbeat", "finish"])
def test_each_write_of_a_holder_names_id_and_token(module):
    writes = 0
    for name, text in STATEMENTS.items():
        if name.startswith(f"{module}."):
            for update in re.split(r"(?=UPDATE jobqueue_job |DELETE FROM jobqueue_job )", text)[1:]:
                condition = update.partition("WHERE")[2].partition("RETURNING")[0]
                assert "j.id = ANY(%(ids)s" in condition, name
                assert "j.lease_token =" in condition, name
                writes += 1
    assert writes == {"heartbeat": 1, "finish": 2}[module]


@pytest.mark.spec("S92", "S201", "A1")
@pytest.mark.parametrize("name", ["FINISH_AND_CLAIM", "FINISH_AND_CLAIM_ONWARD"])
def test_an_exchange_writes_only_rows_that_it_has_locked_by_id_and_token(name):
    text = STATEMENTS[f"finish_and_claim.{name}"]
    locked, written = text.split("FOR NO KEY UPDATE SKIP LOCKED", 1)
    assert "j.id = ANY(%(ending_ids)s" in locked
    assert "j.lease_token = ANY(%(ending_tokens)s" in locked
    condition = written.partition("UPDATE jobqueue_job j SET")[2].partition("), history")[0]
    assert "j.id = ANY(ARRAY(SELECT id FROM locked))" in condition
    assert "j.lease_token = ANY(%(ending_tokens)s" in condition


def test_the_driver_remembers_how_it_reads_the_statements_of_every_job():
    """Longer ones are taken apart at each call."""
    for name in (
        "finish_and_claim.FINISH_AND_CLAIM",
        "finish_and_claim.FINISH_AND_CLAIM_ONWARD",
        "claims.CLAIM",
    ):
        assert len(STATEMENTS[name]) <= MAX_CACHED_STATEMENT_LENGTH
    assert len(finish._SHORT_FINISH) <= MAX_CACHED_STATEMENT_LENGTH
