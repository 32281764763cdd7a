"""What is said of the database's weather: one line an outage, under an honest name."""

import psycopg
import pytest
from psycopg import errors

from jobqueue.states import State
from jobqueue.store.error_classes import CallTimeout
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from jobqueue.worker.services import within
from tests.events import captured
from tests.worker import jobs
from tests.worker.running import sql


@pytest.fixture
def policies():
    outage_log = OutageLog()
    return ErrorPolicy("claim", outage_log), ErrorPolicy("beat", outage_log)


@pytest.mark.spec("S47")
def test_an_outage_is_one_line_and_one_when_it_is_over_whoever_meets_it(policies):
    claim, beat = policies
    with captured() as logs:
        for _ in range(3):
            claim.failed(CallTimeout("no answer"))
            beat.failed(OSError("refused"))
        claim.succeeded()
        beat.succeeded()
        beat.succeeded()
    assert [log["event"] for log in logs] == ["database_unreachable", "database_recovered"]


@pytest.mark.spec("S47", "D43", "D46")
@pytest.mark.parametrize(
    "error",
    [
        errors.QueryCanceled,
        errors.LockNotAvailable,
        errors.DeadlockDetected,
        errors.SerializationFailure,
    ],
)
def test_a_server_that_answers_is_not_called_unreachable(policies, error):
    claim, beat = policies
    with captured() as logs:
        for _ in range(3):
            claim.failed(error("no"))
        beat.failed(error("no"))
        claim.succeeded()
        beat.succeeded()
        claim.failed(error("again"))
        claim.failed(CallTimeout("and then away"))
    assert [(log["event"], log["purpose"]) for log in logs] == [
        ("database_call_failed", "claim"),
        ("database_call_failed", "beat"),
        ("database_call_failed", "claim"),
        ("database_unreachable", "claim"),
    ]


@pytest.mark.spec("S143", "S149")
async def test_a_shutdown_step_that_meets_a_transient_error_is_one_line_without_traceback():
    async def refused():
        raise psycopg.OperationalError("connection refused")

    with captured() as logs:
        assert not await within(1, "report", refused())
    (line,) = logs
    assert (line["event"], line["step"]) == ("shutdown_step_skipped", "report")
    assert "exc_info" not in line


def test_a_type_that_a_migration_alters_costs_fresh_sessions_and_nothing_else(work, body):
    """What is prepared in a session cannot return other types: "cached plan must not change result
    type"."""
    running = work(heartbeat_seconds=0.3, lease_seconds=3.0, cancel_seconds=0.5, lead=True)
    assert running.final(jobs.add.enqueue(1, 2)).result == 3
    alter = "ALTER TABLE jobqueue_job ALTER COLUMN {} TYPE {}"
    usual = {"priority": "smallint", "attempts": "integer", "queue": "varchar(63)"}
    try:
        with captured() as entries:
            for column, kind in {"priority": "integer", "attempts": "bigint"}.items():
                sql(alter.format(column, kind))
                for number in range(3):
                    assert running.final(jobs.add.enqueue(number, 2)).result == number + 2
            sql(alter.format("queue", "text"))
            row = running.final(jobs.once.enqueue(body(lambda: 1 / 0)))
        assert (row.state, row.attempts) == (State.DEAD, 1)
        assert running.thread.is_alive()
        failed = [
            e["event"] for e in entries if e["event"] in ("service_failed", "maintenance_failed")
        ]
        assert failed == []
    finally:
        for column, kind in usual.items():
            sql(alter.format(column, kind))
    assert running.stop() == 0
