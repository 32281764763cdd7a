"""What is said of the database's weather: one line an outage, under an honest name."""

import psycopg
import pytest
from psycopg import errors

from jobqueue.store.error_classes import CallTimeout
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from jobqueue.worker.services import within
from tests.events import captured


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
