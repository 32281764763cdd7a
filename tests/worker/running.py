"""A whole worker in a thread of the test's own process: its handlers and the test share objects."""

from __future__ import annotations

import contextlib
import decimal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from django.db import connections

from jobqueue.conf import Settings
from jobqueue.models import Attempt, Job
from jobqueue.states import FINAL, Phase, State
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.worker.execution.executor import Executor
from jobqueue.worker.options import WorkerOptions
from jobqueue.worker.worker import Worker
from tests.children import wait_until

STOP_SECONDS = 20


def stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name} does not end:\n{''.join(traceback.format_stack(frame))}"


class Running:
    """`with Running(parameters) as running:` and then enqueue, wait for facts, look at rows."""

    def __init__(self, parameters: dict[str, Any], *, lead: bool = False, **given: Any) -> None:
        usual = {
            "concurrency": 4,
            "heartbeat_seconds": 1.0,
            "drain_seconds": 5.0,
            "cancel_seconds": 5.0,
            "backoff_base_seconds": 0.0,
        }
        self.settings = Settings(**{**usual, **given})
        options = WorkerOptions(signals=False, lead=lead)
        self.worker = Worker(
            self.settings,
            ConnectionParameters.fixed(parameters),
            options,
            on_start=lambda: None,
            send_finished=lambda ids: None,
        )
        self.code: int | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="worker")

    def _run(self) -> None:
        decimal.getcontext()  # made in the context that each attempt copies, as an import might do
        try:
            self.code = self.worker.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Running:
        self.threads_before = set(threading.enumerate())
        self.thread.start()
        try:
            self.wait(lambda: self.error or self._phase() == Phase.RUNNING)
            assert self.error is None, self.error
        except BaseException:
            self.stop()
            raise
        return self

    def _phase(self) -> Phase | None:
        shutdown = getattr(self.worker, "shutdown", None)
        return shutdown.phase if shutdown is not None else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> int | None:
        """Stop as a signal would, and return the exit code."""
        if self.thread.is_alive():
            loop = self.worker.watchdog.loop
            assert loop is not None
            with contextlib.suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(self.worker.shutdown.request, "signal")
        self.thread.join(STOP_SECONDS)
        assert not self.thread.is_alive(), "the worker does not end"
        assert self.error is None, self.error
        for (
            handler_thread
        ) in self.executor.handler_threads._taken:  # whose handler has outlived the worker
            handler_thread.close()
        for thread in self.own_threads():
            thread.join(STOP_SECONDS)
            assert not thread.is_alive(), stack_of(thread)
        return self.code

    def own_threads(self) -> list[threading.Thread]:
        """The handler threads, which end by themselves once they are closed."""
        new = set(threading.enumerate()) - self.threads_before
        return [thread for thread in new if thread.name.startswith(("handler-", "signals"))]

    def on_loop(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call something in the worker's loop, and return what it returns."""

        answer: Future[Any] = Future()

        def made() -> None:
            try:
                answer.set_result(call(*args))
            except BaseException as error:
                answer.set_exception(error)

        loop = self.worker.watchdog.loop
        assert loop is not None
        loop.call_soon_threadsafe(made)
        return answer.result(10)

    @property
    def executor(self) -> Executor:
        return self.worker.components.executor

    def wait(self, fact: Callable[[], Any], seconds: float = 30) -> Any:
        """Poll until the fact is true; a worker that has ended is one that failed."""

        def logged() -> Any:
            value = fact()
            assert value or self.thread.is_alive() or self.code is not None, self.error
            return value

        return wait_until(logged, seconds)

    def state(self, job: Any, *states: State, seconds: float = 30) -> Job:
        """Wait until the job is in one of these states, and return its row."""
        return self.wait(  # type: ignore[no-any-return]
            lambda: Job.objects.filter(pk=key(job), state__in=states).first(), seconds
        )

    def final(self, job: Any, seconds: float = 30) -> Job:
        return self.state(job, *FINAL, seconds=seconds)

    def quiet(self) -> None:
        """Wait until no job waits or runs, and nothing is held."""
        self.wait(lambda: not Job.objects.exclude(state__in=FINAL).exists(), 60)
        self.wait(lambda: len(self.worker.registry) == 0)

    def inflight(self, job: Any) -> Any:
        """What the worker holds for a job; None when it holds nothing."""
        return next((h for h in self.worker.registry if h.claim.id == key(job)), None)


def key(job: Any) -> int:
    return int(getattr(job, "id", job))


def attempts(job: Any) -> list[Attempt]:
    return list(Attempt.objects.filter(job=key(job)).order_by("number"))


def sql(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """What the test's own connection answers."""
    with connections["default"].cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []  # type: ignore[no-any-return]


def active(fragment: str) -> list[tuple[Any, ...]]:
    """The sessions that run a statement with this text just now: pid and query."""
    return sql(
        "SELECT pid, query FROM pg_stat_activity WHERE state = 'active' "
        "AND pid <> pg_backend_pid() AND datname = current_database() AND query LIKE %s",
        f"%{fragment}%",
    )


def open_transactions() -> list[tuple[Any, ...]]:
    """Sessions of this database that are idle in a transaction."""
    return sql(
        "SELECT pid, query FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%' "
        "AND pid <> pg_backend_pid() AND datname = current_database()"
    )
