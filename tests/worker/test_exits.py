"""Every way in which a handler can end: a recorded failure, and nobody else is hurt."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.exceptions import JobCancelled, JobTimeout
from jobqueue.states import State
from tests.worker import jobs
from tests.worker.running import attempts

UNBEARABLE = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


def raise_it(error):
    def handler():
        raise error()

    async def ahandler():
        raise error()

    return handler, ahandler


def cyclic():
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain():
    error = ValueError("0")
    for number in range(1, 5_000):
        following = ValueError(str(number))
        following.__context__ = error
        error = following
    return error


def nested_group():
    error = ValueError("deep")
    for _ in range(50):
        error = BaseExceptionGroup("group", [error, SystemExit(1)])
    return error


class BadMeta(type):
    @property
    def __module__(cls):
        raise ValueError("no module")


class Odd(Exception, metaclass=BadMeta):
    pass


ERRORS = {
    **{kind.__name__: kind for kind in UNBEARABLE},
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "ExceptionGroup": lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(500)]),
    "BaseExceptionGroup": nested_group,
    "unprintable": Unprintable,
    "cyclic": cyclic,
    "long chain": long_chain,
    "huge message": lambda: ValueError("x" * 50_000_000),
    "NUL": lambda: ValueError("a\0b"),
    "surrogate": lambda: ValueError("a\ud800b"),
    "odd class": Odd,
    "JobTimeout": JobTimeout,
    "JobCancelled": JobCancelled,
    "bad Snooze": type("BadSnooze", (jobs.Snooze,), {"__init__": lambda self: None}),
    "bad RetryLater": type("BadLater", (jobs.RetryLater,), {"__init__": lambda self: None}),
}


@pytest.mark.spec("S60", "S72", "S73", "A4", "A23", "D122")
def test_every_exit_of_a_handler_is_a_recorded_failure_and_hurts_nobody(work, body, shared):
    running = work(concurrency=4)
    neighbour = jobs.call.enqueue(body(lambda: shared.events["go"].wait(50) and "unhurt"))
    running.state(neighbour, State.RUNNING)
    waiting = {}
    for name, error in ERRORS.items():
        handler, ahandler = raise_it(error)
        waiting[name, "plain"] = jobs.once.enqueue(body(handler))
        waiting[name, "coroutine"] = jobs.aonce.enqueue(body(ahandler))
    for what, job in waiting.items():
        row = running.final(job, 50)
        assert row.state == State.DEAD, what
        (attempt,) = attempts(job)
        assert attempt.outcome == "FAILED", what
        assert attempt.error_class, what
        assert len(attempt.error_message) <= 4_000, what
        assert len(attempt.traceback) <= 16_000, what
    shared.events["go"].set()
    assert running.final(neighbour).result == "unhurt"
    assert running.stop() == 0


@pytest.mark.spec("S72", "D80")
@pytest.mark.parametrize("error", [asyncio.CancelledError, JobCancelled, GeneratorExit])
def test_a_cancel_that_nobody_asked_for_is_retried(work, body, shared, error):
    running = work()

    def handler():
        jobs.note("run")
        if len(shared.notes) == 1:
            raise error
        return len(shared.notes)

    async def ahandler():
        return handler()

    for task, function in ((jobs.call, handler), (jobs.acall, ahandler)):
        shared.notes.clear()
        job = task.enqueue(body(function))
        assert running.final(job).result == 2
        assert [a.outcome for a in attempts(job)] == ["FAILED", "SUCCEEDED"]


@pytest.mark.spec("S73")
def test_endless_recursion_is_a_failure(work, body):
    running = work()

    def handler():
        return handler()

    async def ahandler():
        return await ahandler()

    for task, function in ((jobs.once, handler), (jobs.aonce, ahandler)):
        job = task.enqueue(body(function))
        assert running.final(job).state == State.DEAD
        (attempt,) = attempts(job)
        assert attempt.error_class == "builtins.RecursionError"
        assert len(attempt.traceback) <= 16_000


@pytest.mark.spec("S73")
def test_a_coroutine_that_cancels_itself_is_a_failure(work, body):
    running = work()

    async def handler():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def only_asks():
        asyncio.current_task().cancel()
        return "reached"

    assert running.final(jobs.aonce.enqueue(body(handler))).state == State.DEAD
    assert running.final(jobs.aonce.enqueue(body(only_asks))).result == "reached"
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
