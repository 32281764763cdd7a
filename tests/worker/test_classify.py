"""What each end of a handler means: the outcome, the delay, the reason."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from django.db import OperationalError
from psycopg.errors import QueryCanceled

from jobqueue.conf import Settings
from jobqueue.exceptions import (
    JobCancelled,
    JobInterrupted,
    JobTimeout,
    PermanentError,
    RetryLater,
    Snooze,
)
from jobqueue.models import Job
from jobqueue.states import Outcome, Reason, State
from jobqueue.store.claims import Claim
from jobqueue.worker.inflight import InFlight, Stop
from jobqueue.worker.outcomes import classify, error_text, lost_commits
from jobqueue.worker.outcomes.attempt_options import Options
from tests.worker import jobs
from tests.worker.running import attempts

SETTINGS = Settings(backoff_base_seconds=1, backoff_max_seconds=3600)


def claim(**given: Any) -> Claim:
    now = datetime.now(UTC)
    usual = {
        "id": 1,
        "token": uuid.uuid4(),
        "task": "shop.receipt",
        "args": [],
        "kwargs": {},
        "signature": "",
        "queue": "default",
        "backend": "default",
        "priority": 0,
        "options": {},
        "attempts": 0,
        "failures": 0,
        "max_attempts": 5,
        "enqueued_at": now,
        "started_at": now,
        "claimed_at": now,
        "traceparent": "",
        "cancel_requested": False,
        "parked_seconds": None,
    }
    return Claim(**{**usual, **given})


def inflight(stop=None, landed=False, **given):
    one = InFlight(claim(**given), 0.0)
    one.stop_reason, one.interrupt_raised = stop, landed
    one.control.cancelled = stop is Stop.CANCEL
    return one


def options(**given):
    usual = {"timeout": 60.0, "backoff": None, "atomic": False, "interruptible": True}
    return Options(**{**usual, **given})


def of(error, stop=None, *, value=None, landed=False, backoff=None, **given):
    return classify.of(
        inflight(stop, landed, **given), value, error, options(backoff=backoff), SETTINGS
    )


def caused(error, cause, how="context"):
    setattr(error, f"__{how}__", cause)
    return error


# What steers.


@pytest.mark.spec("S65", "S74")
def test_an_error_is_a_counted_failure_with_the_backoff():
    ending = of(ValueError("no"), failures=2)
    assert (ending.outcome, ending.final, ending.reason) == (Outcome.FAILED, False, Reason.RETRY)
    assert 3.2 <= ending.delay <= 4.8
    assert (ending.error_class, ending.error_message) == ("builtins.ValueError", "no")


@pytest.mark.spec("S77")
def test_a_snooze_is_not_counted_and_has_its_own_delay():
    ending = of(Snooze(90))
    assert (ending.outcome, ending.delay, ending.error_class) == (Outcome.SNOOZED, 90.0, "")


def lost_commit(**given):
    error = OperationalError("server closed the connection unexpectedly")
    return lost_commits.classified(inflight(**given), error, options(backoff=0.0), SETTINGS)


# Each way back to the queue that counts nothing, in a worker that stays.
UNCOUNTED = {
    "snoozed": lambda: of(Snooze(0)),
    "snoozed as its lease ends": lambda: of(caused(Snooze(0), JobInterrupted()), Stop.LEASE),
    "its lease cannot be kept": lambda: of(JobInterrupted(), Stop.LEASE),
    "its lease cannot be kept by a coroutine": lambda: of(asyncio.CancelledError(), Stop.LEASE),
    "returned": lambda: classify.unstarted(claim(), at_once=False),
    "no connection": lambda: of(classify.NoConnection("none")),
    "its commit is lost": lost_commit,
}


@pytest.mark.parametrize("way", UNCOUNTED)
def test_no_uncounted_way_back_is_quicker_than_a_second(way):
    ending = UNCOUNTED[way]()
    assert ending.outcome in (None, Outcome.INTERRUPTED, Outcome.SNOOZED)
    assert (ending.delay or ending.hold) >= 1.0


def test_what_a_shutdown_takes_goes_back_at_once():
    for ending in (
        of(JobInterrupted(), Stop.SHUTDOWN),
        classify.unstarted(claim(), at_once=True),
        lost_commit(stop=Stop.SHUTDOWN),
    ):
        assert (ending.delay, ending.hold) == (0.0, None)
        assert ending.outcome in (None, Outcome.INTERRUPTED)


@pytest.mark.spec("S78")
def test_retry_later_is_counted_and_has_its_own_delay():
    ending = of(RetryLater(90))
    assert (ending.outcome, ending.delay, ending.final) == (Outcome.FAILED, 90.0, False)


@pytest.mark.spec("S65")
def test_a_permanent_error_is_final():
    ending = of(PermanentError("gone"))
    assert (ending.final, ending.reason, ending.delay) == (True, Reason.PERMANENT, 0.0)


@pytest.mark.parametrize("seconds", [None, "soon", float("nan"), -1, 10**12, True])
def test_a_delay_that_was_spoilt_afterwards_falls_back(seconds):
    for error in (Snooze(1), RetryLater(1)):
        error.seconds = seconds
        ending = of(error)
        assert (ending.outcome, ending.final) == (Outcome.FAILED, False)
        assert 0.8 <= ending.delay <= 1.2


# Handlers that were asked to stop.


@pytest.mark.spec("S65", "S128")
@pytest.mark.parametrize(
    ("stop", "outcome"),
    [
        (Stop.CANCEL, Outcome.CANCELLED),
        (Stop.TIMEOUT, Outcome.TIMED_OUT),
        (Stop.SHUTDOWN, Outcome.INTERRUPTED),
        (Stop.LEASE, Outcome.INTERRUPTED),
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        JobCancelled(),
        JobTimeout(),
        JobInterrupted(),
        caused(ValueError(), asyncio.CancelledError()),
        caused(caused(ValueError(), KeyError(), "cause"), JobTimeout()),
        caused(OSError(), QueryCanceled(), "cause"),
        BaseExceptionGroup("many", [ValueError(), JobCancelled()]),
        caused(ExceptionGroup("many", [caused(ValueError(), JobTimeout())]), KeyError()),
    ],
    ids=repr,
)
def test_an_interrupt_and_what_it_brought_about_mean_what_was_requested(stop, outcome, error):
    assert of(error, stop).outcome == outcome


@pytest.mark.spec("S71", "S72")
@pytest.mark.parametrize("stop", list(Stop))
def test_an_error_of_its_own_stays_one_whatever_was_requested(stop):
    ending = of(ValueError("own"), stop)
    assert (ending.outcome, ending.error_message) == (Outcome.FAILED, "own")


@pytest.mark.spec("S71", "A12")
@pytest.mark.parametrize("stop", list(Stop))
def test_a_value_is_a_success_whatever_was_requested(stop):
    assert of(None, stop, value=5).outcome == Outcome.SUCCEEDED


@pytest.mark.spec("S128")
def test_cooperative_and_forced_are_distinguished():
    assert of(JobCancelled("seen"), Stop.CANCEL).reason == Reason.CANCELLED_COOPERATIVE
    assert of(JobCancelled(), Stop.CANCEL).reason == Reason.CANCELLED_COOPERATIVE
    assert of(JobCancelled(), Stop.CANCEL, landed=True).reason == Reason.CANCELLED_FORCED
    assert of(asyncio.CancelledError(), Stop.CANCEL).reason == Reason.CANCELLED_FORCED


@pytest.mark.spec("S122")
def test_a_shutdown_ends_no_job_but_lets_it_be_snoozed():
    by_shutdown = caused(PermanentError("no"), JobInterrupted())
    assert of(by_shutdown, Stop.SHUTDOWN).outcome == Outcome.INTERRUPTED
    snoozed = of(caused(Snooze(60), JobInterrupted()), Stop.SHUTDOWN)
    assert (snoozed.outcome, snoozed.delay) == (Outcome.SNOOZED, 60.0)


def test_a_timed_out_handler_may_steer():
    final = of(caused(PermanentError("no"), JobTimeout()), Stop.TIMEOUT)
    assert (final.outcome, final.final) == (Outcome.TIMED_OUT, True)
    later = of(caused(RetryLater(60), JobTimeout()), Stop.TIMEOUT)
    assert (later.outcome, later.delay) == (Outcome.TIMED_OUT, 60.0)
    message = "The attempt ran longer than its timeout of 60 s."
    assert of(JobTimeout(), Stop.TIMEOUT).error_message == message


# Backoff.


def fails(failures):
    raise ZeroDivisionError


def leaves(failures):
    raise SystemExit


def text(failures):
    return "soon"


def nan(failures):
    return float("nan")


def negative(failures):
    return -5


def huge(failures):
    return 10**400


def endless(failures):
    return float("inf")


def slow(failures):
    return 100.0 * failures


async def coroutine(failures):
    return 1


@pytest.mark.spec("S74", "S76")
@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    "rule",
    [
        fails,
        leaves,
        text,
        nan,
        negative,
        huge,
        coroutine,
        "no.such.rule",
        "os.sep",
        f"{__name__}.x",
    ],
)
def test_a_backoff_that_breaks_falls_back_to_the_setting(rule):
    ending = of(ValueError(), backoff=rule, failures=1)
    assert (ending.outcome, ending.final) == (Outcome.FAILED, False)
    assert 1.6 <= ending.delay <= 2.4


@pytest.mark.spec("S74")
def test_a_backoff_is_capped_by_the_ceiling_and_found_by_its_path():
    assert 2_880 <= of(ValueError(), backoff=endless).delay <= 4_320
    assert of(ValueError(), backoff="tests.worker.test_classify.slow", failures=1).delay >= 160
    assert 16 <= of(ValueError(), backoff=10, failures=1).delay <= 24


@pytest.mark.spec("S74", "D110")
@pytest.mark.parametrize("failures", [0, 9, 45, 62, 309, 1023, 99_997])
def test_a_delay_is_positive_and_capped_at_any_number_of_failures(failures):
    assert 0 < of(ValueError(), failures=failures, max_attempts=99_998).delay <= 4_320


@pytest.mark.spec("D110", "D111")
@pytest.mark.parametrize("budget", [1, 2, 3, 10])
def test_a_failing_job_runs_exactly_as_often_as_its_budget_says(work, body, budget):
    running = work()

    def handler():
        raise ValueError

    row = running.final(jobs.call.using(max_attempts=budget).enqueue(body(handler)))
    assert (row.state, row.attempts, row.failures) == (State.DEAD, budget, budget)
    assert row.reason == Reason.ATTEMPTS_SPENT
    assert [a.number for a in attempts(row.pk)] == list(range(1, budget + 1))


@pytest.mark.spec("D110", "D111")
@pytest.mark.parametrize("failures", [45, 62, 309, 1023, 99_996, 99_997])
def test_late_failures_of_a_large_budget_are_rescheduled_or_the_last(work, body, failures):
    running = work(backoff_base_seconds=1.0, poll_seconds=0.2)

    def handler():
        raise ValueError

    job = jobs.call.using(max_attempts=99_998, backoff=3600).enqueue(body(handler))
    running.state(job, State.SCHEDULED)
    Job.objects.filter(pk=job.id).update(
        state=State.READY, failures=failures, attempts=failures, run_at="2020-01-01T00:00Z"
    )
    row = running.wait(lambda: Job.objects.filter(pk=job.id, attempts=failures + 1).first())
    last = failures + 1 >= 99_998
    assert row.state == (State.DEAD if last else State.SCHEDULED)


# Results.


class Number(IntEnum):
    ONE = 1


class Evil:
    @property
    def __class__(self):
        raise SystemExit


class EvilDict(dict):
    def items(self):
        raise KeyboardInterrupt


class EvilStr(str):
    __slots__ = ()

    def isascii(self):
        raise ValueError("no text")

    def __contains__(self, other):
        raise ValueError("no text")


async def _coroutine():
    return 1


async def _async_generator():
    yield 1


def recursive():
    value: list[Any] = []
    value.append(value)
    return value


RESULTS = {
    "object": object,
    "set": lambda: {1},
    "bytes": lambda: b"x",
    "coroutine": _coroutine,
    "generator": lambda: (n for n in range(3)),
    "async generator": _async_generator,
    "NUL": lambda: ["a\0b"],
    "surrogate": lambda: {"a": "\ud800"},
    "NaN": lambda: [float("nan")],
    "infinity": lambda: {"a": [float("inf")]},
    "too large": lambda: "x" * 2_000_000,
    "int keys": lambda: {1: 2},
    "datetime": lambda: datetime.now(UTC),
    "decimal": lambda: Decimal("1.5"),
    "model": lambda: Job(task="x"),
    "recursive": recursive,
    "evil class": Evil,
    "evil dict": lambda: EvilDict(a=1),
    "evil text": lambda: EvilStr("a"),
    "deep": lambda: eval("[" * 150 + "]" * 150),
    "huge int": lambda: 10**5_000,
    "exception": lambda: ValueError("returned, not raised"),
}


@pytest.mark.spec("S73", "S90", "D71", "D78")
def test_a_result_that_json_cannot_carry_is_final_and_says_why(work, body):
    running = work()
    waiting = {}
    for name, value in RESULTS.items():

        async def ahandler(value=value):
            return value()

        waiting[name, "plain"] = jobs.call.enqueue(body(value))
        waiting[name, "coroutine"] = jobs.acall.enqueue(body(ahandler))
    for what, job in waiting.items():
        row = running.final(job, 50)
        assert (row.state, row.reason, row.attempts) == (State.DEAD, Reason.BAD_RESULT, 1), what
        assert row.last_error, what
    assert running.final(jobs.add.enqueue(1, 2)).result == 3
    assert running.stop() == 0


@pytest.mark.spec("S90")
@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, 2**70, "", "ü\u2028\\u0000", [], {"a": [1, {"b": None}]}, Number.ONE],
    ids=repr,
)
def test_a_result_comes_back_equal(work, body, value):
    running = work()

    async def ahandler():
        return value

    assert running.final(jobs.call.enqueue(body(lambda: value))).result == value
    assert running.final(jobs.acall.enqueue(body(ahandler))).result == value


@pytest.mark.spec("D73")
def test_a_result_of_fifty_megabytes_is_refused(work, body):
    running = work()
    row = running.final(jobs.call.enqueue(body(lambda: ["x" * 1_000] * 50_000)), 60)
    assert (row.state, row.reason) == (State.DEAD, Reason.BAD_RESULT)
    assert "RESULT_MAX_BYTES" in row.last_error


# Parking, and texts.


@pytest.mark.spec("S61")
def test_a_parked_job_waits_for_code_that_knows_it_and_not_for_a_time():
    ending = classify.parked(claim(), "why")
    assert (ending.outcome, ending.reason, ending.delay) == (None, Reason.UNKNOWN_TASK, 0.0)


@pytest.mark.spec("D76", "D77")
def test_strings_are_bounded_and_keep_both_ends():
    message = error_text.message_of(ValueError("begin" + "x" * 1_000_000 + "end"))
    assert len(message) <= 4_000
    assert message.startswith("begin")
    assert message.endswith("end")


def test_a_traceback_shows_neither_the_worker_nor_local_variables():
    secret = "s3cret"  # noqa: F841

    def handler():
        raise ValueError("shown")

    try:
        handler()
    except ValueError as error:
        shown = error_text.traceback_of(error)
    assert "in handler" in shown
    assert "s3cret" not in shown.replace('"s3cret"', "")


def test_a_long_chain_is_cut_after_its_newest_errors():
    error = ValueError("0")
    for number in range(1, 100_000):
        following = ValueError(str(number))
        following.__context__ = error
        error = following
    shown = error_text.traceback_of(error)
    assert "ValueError: 99999" in shown
    assert len(shown) <= 16_000


def test_the_row_of_a_job_shows_its_error_in_one_line(work, body):
    def handler():
        raise ValueError("no\0 \ud800 way")

    row = work().final(jobs.once.enqueue(body(handler)))
    assert row.last_error == "builtins.ValueError: no\N{REPLACEMENT CHARACTER} ? way"
