"""What the project declares is brought to the tables before the worker serves."""

import psycopg
import pytest
from django.db import OperationalError

from jobqueue.conf import settings
from jobqueue.worker.shutdown import Shutdown
from jobqueue.worker.startup import prepare
from jobqueue.worker.threads.handler_thread import HandlerThreads
from tests.events import captured


def wrapped(error):
    """As Django hands on what the driver raises."""
    outer = OperationalError(*error.args)
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "has_stack"),
    [
        (wrapped(psycopg.OperationalError("connection refused")), False),
        (ValueError("no such task"), True),
    ],
)
async def test_a_failure_is_logged_and_not_fatal_and_a_transient_one_in_one_line(error, has_stack):
    def fails():
        raise error

    handler_threads = HandlerThreads()
    shutdown = Shutdown(settings(), on_begin=list, on_phase=list, on_end=lambda moment: None)
    with captured() as lines:
        await prepare(handler_threads, fails, shutdown)
    (line,) = [line for line in lines if line["event"] == "schedules_sync_failed"]
    assert ("exc_info" in line, "error" in line) == (has_stack, not has_stack)
    handler_threads.close()
