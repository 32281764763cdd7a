"""One thread and one connection for each running handler, healthy and clean for the next."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import DatabaseError, InternalError, connection, connections, transaction
from structlog.contextvars import merge_contextvars

from jobqueue import logs, operations
from jobqueue.models import Job
from jobqueue.states import State
from jobqueue.worker.threads import handler_thread as lanes_module
from jobqueue.worker.threads import orm_connections
from jobqueue.worker.threads.handler_thread import HandlerThread, HandlerThreads
from tests.children import wait_until
from tests.events import captured
from tests.worker import jobs
from tests.worker.running import active, attempts, open_transactions, sql

SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid() AND backend_type = 'client backend' "
    "AND application_name NOT LIKE 'jobqueue %%'"
)


def backend() -> int:
    return int(jobs.query("SELECT pg_backend_pid()")[0])


@pytest.fixture
def handler_thread(transactional_db):
    handler_thread = HandlerThread("handler-of-a-test")
    yield handler_thread
    handler_thread.close()
    handler_thread.thread.join(10)


def in_thread(handler_thread, function):
    """Run a handler's body as the worker does: prepared before, tidied after."""

    def run():
        handler_thread.prepare()
        ended = handler_thread.run_user_code(function)
        handler_thread.tidy()
        return ended

    value, error = handler_thread.submit(run).result(20)
    if error is not None:
        raise error
    return value


@pytest.mark.spec("S81", "A14")
def test_ten_coroutines_use_the_orm_at_the_same_time(work, body):
    running = work(concurrency=10)
    together = threading.Barrier(10)

    async def handler():
        # Breaks unless ten ORM threads stand here at once, each on a connection of its own.
        await sync_to_async(together.wait)(20)
        await jobs.aquery("SELECT pg_sleep(0.2)")
        return await sync_to_async(backend)()

    name = body(handler)
    waiting = [jobs.aonce.enqueue(name) for _ in range(10)]
    ended = [running.final(job) for job in waiting]
    assert {job.state for job in ended} == {State.SUCCEEDED}, [job.last_error for job in ended]
    assert len({job.result for job in ended}) == 10


@pytest.mark.spec("S81")
def test_ten_plain_handlers_hold_ten_transactions_at_once(work, body):
    running = work(concurrency=10)
    together = threading.Barrier(10)

    def handler():
        with transaction.atomic():
            number = jobs.query("SELECT txid_current()")[0]
            together.wait(20)
        return number

    name = body(handler)
    waiting = [jobs.once.enqueue(name) for _ in range(10)]
    assert len({running.final(job).result for job in waiting}) == 10


@pytest.mark.spec("S81")
def test_sessions_stay_within_the_concurrency_and_fall_when_idle(work, body, monkeypatch):
    running = work(concurrency=4, heartbeat_seconds=0.5)
    name = body(backend)
    waiting = [jobs.call.enqueue(name) for _ in range(50)]
    used = {running.final(job).result for job in waiting}
    assert len(used) <= 4
    monkeypatch.setattr(lanes_module, "IDLE_SECONDS", 0.1)
    running.wait(lambda: not {pid for (pid,) in sql(SESSIONS)} & used)


@pytest.mark.spec("S68", "S81", "D38")
def test_no_job_fails_by_a_session_that_was_ended_while_it_was_idle(work, body):
    running = work(concurrency=4)
    name = body(backend)
    for job in [jobs.once.enqueue(name) for _ in range(8)]:
        running.final(job)
    running.quiet()
    sql(SESSIONS.replace("SELECT pid", "SELECT pg_terminate_backend(pid, 5000)"))
    waiting = [jobs.once.enqueue(name) for _ in range(100)]
    states = [running.final(job, 60).state for job in waiting]
    assert states == [State.SUCCEEDED] * 100
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}


@pytest.mark.spec("S81")
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_cancelled_orm_call_ends_at_once_and_leaves_no_open_transaction(work, body, kind):
    running = work()

    def write():
        with transaction.atomic():
            Group.objects.create(name="half")
            jobs.query("SELECT pg_sleep(600)")

    async def awrite():
        await sync_to_async(write)()

    task, handler = (jobs.call, write) if kind == "plain" else (jobs.acall, awrite)
    job = task.enqueue(body(handler))
    running.wait(lambda: active("pg_sleep(600)"))
    operations.cancel(Job.objects.get(pk=job.id))
    assert running.final(job).state == State.CANCELLED
    running.wait(lambda: not active("pg_sleep(600)"))
    assert open_transactions() == []
    assert not Group.objects.exists()
    assert running.final(jobs.call.enqueue(body(backend))).state == State.SUCCEEDED


@pytest.mark.spec("S85", "S120")
def test_a_thread_that_is_still_busy_is_neither_reused_nor_waited_for_by_others(work, body, shared):
    running = work(concurrency=2)
    threads = []

    def slow():
        threads.append(threading.get_ident())
        shared.events["go"].wait(30)

    async def leaves_a_thread():
        task = asyncio.ensure_future(sync_to_async(slow)())
        while not threads:
            await asyncio.sleep(0.01)
        return task.done()

    first = jobs.acall.enqueue(body(leaves_a_thread))
    running.wait(lambda: threads)
    for _ in range(5):
        other = running.final(jobs.call.enqueue(body(threading.get_ident)))
        assert other.result not in threads
    assert Job.objects.get(pk=first.id).state == State.RUNNING
    assert running.worker.registry.free == 1
    shared.events["go"].set()
    assert running.final(first).state == State.SUCCEEDED


@pytest.mark.spec("S81", "D83")
def test_bridges_between_sync_and_async_do_not_deadlock_and_keep_the_connection(work, body):
    running = work(concurrency=10)

    async def inner():
        return await sync_to_async(backend)()

    def outer():
        return [backend(), async_to_sync(inner)(), async_to_sync(deeper)()]

    async def deeper():
        return await sync_to_async(lambda: async_to_sync(inner)())()

    async def afar():
        return [await sync_to_async(backend)(), await deeper(), await sync_to_async(outer)()]

    plain, coroutine = body(outer), body(afar)
    waiting = [jobs.once.enqueue(plain) for _ in range(20)]
    waiting += [jobs.aonce.enqueue(coroutine) for _ in range(20)]
    for job in waiting:
        row = running.final(job, 60)
        assert row.state == State.SUCCEEDED, row.last_error
        flat = [pid for part in row.result for pid in (part if isinstance(part, list) else [part])]
        assert len(set(flat)) == 1


@pytest.mark.spec("S85", "D83")
def test_ten_plain_jobs_run_side_by_side(work, body):
    running = work(concurrency=10)
    together = threading.Barrier(10)
    name = body(lambda: together.wait(20))
    waiting = [jobs.once.enqueue(name) for _ in range(10)]
    assert {running.final(job).state for job in waiting} == {State.SUCCEEDED}


@pytest.mark.parametrize(
    "damage",
    [
        "SET statement_timeout = '1ms'",
        "  set session search_path = nowhere",
        "SELECT set_config('search_path', 'nowhere', false)",
        "SELECT 1; SET search_path = nowhere",
        "CREATE TEMP TABLE auth_group (id int)",
        "SELECT pg_advisory_lock(7)",
        "LISTEN something",
    ],
)
@pytest.mark.spec("S81")
def test_what_a_handler_leaves_in_its_session_does_not_reach_the_next_one(handler_thread, damage):
    before = in_thread(handler_thread, backend)
    in_thread(handler_thread, lambda: jobs.query(damage) and None)
    assert in_thread(handler_thread, backend) != before
    assert in_thread(handler_thread, Group.objects.count) == 0
    assert sql("SELECT pg_try_advisory_lock(7)") == [(True,)]
    sql("SELECT pg_advisory_unlock(7)")


@transaction.atomic
def _write_to_a_standby():
    jobs.query("SET TRANSACTION READ ONLY")
    Group.objects.create(name="of a standby")


def _written_to_a_standby():
    with pytest.raises(InternalError):
        _write_to_a_standby()


@pytest.mark.spec("S47")
def test_a_session_that_may_only_read_is_not_kept(handler_thread):
    before = in_thread(handler_thread, backend)
    in_thread(handler_thread, _written_to_a_standby)
    assert in_thread(handler_thread, backend) != before


@pytest.mark.parametrize(
    "harmless",
    [
        "SET LOCAL statement_timeout = 1",
        "UPDATE auth_group SET name = 'set'",
        "SELECT 'SET x'",
        "SELECT pg_advisory_xact_lock(1)",
        "SAVEPOINT s1",
    ],
)
def test_ordinary_statements_keep_the_session(harmless):
    assert not orm_connections.changes_session(harmless)


def _left_open():
    transaction.set_autocommit(False)
    Group.objects.create(name="open")


def _left_atomic():
    transaction.atomic().__enter__()
    Group.objects.create(name="open")


def _left_broken():
    transaction.atomic().__enter__()
    with pytest.raises(DatabaseError):
        jobs.query("SELECT nonsense")


def _left_closed():
    transaction.atomic().__enter__()
    connection.close()


def _left_and_forgotten():
    transaction.atomic().__enter__()
    Group.objects.create(name="open")
    del connections["default"]


@pytest.mark.spec("S81")
@pytest.mark.parametrize(
    "leave", [_left_open, _left_atomic, _left_broken, _left_closed, _left_and_forgotten]
)
def test_a_transaction_that_a_handler_left_is_rolled_back_for_the_next_one(handler_thread, leave):
    in_thread(handler_thread, leave)
    wait_until(lambda: open_transactions() == [])  # the server hears of it a moment later
    assert in_thread(handler_thread, lambda: connection.in_atomic_block) is False
    in_thread(handler_thread, lambda: Group.objects.create(name="next"))
    assert list(Group.objects.values_list("name", flat=True)) == ["next"]


def test_a_connection_that_was_used_well_is_kept(handler_thread):
    assert in_thread(handler_thread, backend) == in_thread(handler_thread, backend)


def test_a_connection_is_not_kept_past_its_largest_age(handler_thread, settings):
    config = connections["default"].settings_dict
    before = config["CONN_MAX_AGE"]
    try:
        config["CONN_MAX_AGE"] = 0.001
        first = in_thread(handler_thread, backend)
        wait_until(lambda: in_thread(handler_thread, backend) != first)
    finally:
        config["CONN_MAX_AGE"] = before


def test_django_checks_the_health_itself_where_it_was_asked_to(handler_thread, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_HEALTH_CHECKS", True)
    first = in_thread(handler_thread, backend)
    assert in_thread(handler_thread, backend) == first
    sql("SELECT pg_terminate_backend(%s, 5000)", first)
    assert in_thread(handler_thread, backend) != first


def test_debug_does_not_fill_the_log_of_queries(handler_thread, settings):
    settings.DEBUG = True
    for _ in range(3):
        in_thread(handler_thread, lambda: [backend() for _ in range(50)])
        assert handler_thread.submit(lambda: len(connection.queries_log)).result(5) == 0


@pytest.fixture
def pooled(transactional_db):
    """Django's own pool, of two connections."""
    wrapper = connections["default"]
    wrapper.close()
    options = wrapper.settings_dict["OPTIONS"]
    options["pool"] = {"min_size": 1, "max_size": 2, "timeout": 20}
    yield
    wrapper.close()
    wrapper.close_pool()
    del options["pool"]


@pytest.mark.spec("S81", "D35", "D42")
def test_more_threads_than_the_pool_has_connections_share_them(pooled, work, body):
    running = work(concurrency=6)
    name = body(backend)
    waiting = [jobs.once.enqueue(name) for _ in range(40)]
    states = {running.final(job).state for job in waiting}
    assert states == {State.SUCCEEDED}
    assert len({Job.objects.get(pk=job.id).result for job in waiting}) <= 2
    running.stop()


@pytest.mark.spec("S81", "D35")
@pytest.mark.parametrize("leave", [_left_atomic, _left_broken, _left_closed])
def test_no_pool_hands_on_what_a_handler_left(pooled, handler_thread, leave):
    in_thread(handler_thread, leave)
    in_thread(handler_thread, lambda: jobs.query("SET search_path = nowhere"))
    for _ in range(4):
        assert in_thread(handler_thread, Group.objects.count) == 0
    wait_until(lambda: open_transactions() == [])


def test_fresh_connections_are_had_after_a_hangup(transactional_db):
    handler_threads = HandlerThreads()
    idle, busy = handler_threads.borrow(), handler_threads.borrow()
    first, second = in_thread(idle, backend), in_thread(busy, backend)
    handler_threads.give_back(idle)
    handler_threads.renew()
    assert in_thread(handler_threads.borrow(), backend) != first
    in_thread(busy, lambda: None)  # its handler ends
    assert in_thread(busy, backend) != second
    for handler_thread in (idle, busy):
        handler_thread.close()
        handler_thread.thread.join(10)


@pytest.mark.spec("S73", "A23")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_a_thread_survives_whatever_its_calls_raise(handler_thread, kind):
    def call():
        raise kind

    with pytest.raises(RuntimeError if kind is StopIteration else kind):
        handler_thread.submit(call).result(5)
    assert handler_thread.submit(lambda: 1).result(5) == 1


class Interrupt(BaseException):
    pass


def _spin(until):
    while not until.is_set():
        pass


@pytest.mark.spec("S60", "S73")
def test_an_interrupt_never_leaves_the_handlers_code(handler_thread, request):
    """Raced at the handler's very end, thousands of times: it lands in the handler or nowhere."""
    rounds = 30_000 if request.config.getoption("--long") else 3_000
    landed, missed = 0, 0
    for number in range(rounds):

        def body(number=number):
            for _ in range(400 * (number % 20)):
                pass
            return number

        handler_thread._interrupted_at = 0.0
        ended = handler_thread.submit(handler_thread.run_user_code, body)
        while not ended.done():
            handler_thread.interrupt(Interrupt)
        value, error = ended.result(5)
        assert isinstance(error, Interrupt) if error else value == number
        landed, missed = landed + (error is not None), missed + (error is None)
        assert handler_thread.submit(lambda: "quiet").result(5) == "quiet"
    assert landed
    assert missed


@pytest.mark.spec("S71")
def test_an_interrupt_after_the_last_line_does_not_lose_the_result(handler_thread):
    """As if it had been set while the handler returned: it lands in the thread's own code."""
    shut, landed = handler_thread.shut_interrupts, []

    def late():
        if not landed:
            landed.append(True)
            lanes_module._set_async_exception(handler_thread.thread.ident, Interrupt)
        shut()

    handler_thread.shut_interrupts = late
    assert handler_thread.submit(handler_thread.run_user_code, lambda: "reached").result(5) == (
        "reached",
        None,
    )
    assert landed
    assert handler_thread.submit(lambda: "quiet").result(5) == "quiet"


@pytest.fixture(autouse=True)
def _restless(request):
    """Let threads take turns far more often than usual, where a test races them."""
    before = sys.getswitchinterval()
    if "never_leaves" in request.node.name:
        sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_an_interrupt_is_refused_when_no_user_code_runs(handler_thread):
    assert handler_thread.interrupt(Interrupt) is False
    done, begun = threading.Event(), threading.Event()

    def body():
        begun.set()
        _spin(done)

    ended = handler_thread.submit(handler_thread.run_user_code, body)
    assert begun.wait(10)
    assert handler_thread.interrupt(Interrupt) is True
    assert handler_thread.interrupt(Interrupt) is False  # one at a time
    assert isinstance(ended.result(10)[1], Interrupt)
    assert handler_thread.interrupt(Interrupt) is False


def test_a_driver_lock_held_at_an_interrupt_is_not_handed_to_the_next_handler(handler_thread):
    """The interrupt may have landed inside the driver: the connection is not used again."""
    begun, done = threading.Event(), threading.Event()

    def body():
        backend()
        begun.set()
        _spin(done)

    def run():
        handler_thread.prepare()
        ended = handler_thread.run_user_code(body)
        handler_thread.tidy()
        return ended

    before = in_thread(handler_thread, backend)
    ended = handler_thread.submit(run)
    assert begun.wait(10)
    wait_until(lambda: handler_thread.interrupt(Interrupt))
    assert isinstance(ended.result(10)[1], Interrupt)
    assert in_thread(handler_thread, backend) != before


@pytest.mark.parametrize("path", sorted(lanes_module.FRAGILE))
def test_an_interrupt_waits_while_a_lock_of_the_whole_process_may_be_held(handler_thread, path):
    """As between `lock.acquire()` and the `try:` behind it."""
    begun, leave, done = threading.Event(), threading.Lock(), threading.Event()
    words = {"begun": begun, "leave": leave}
    source = "def inside():\n    begun.set()\n    while not leave.locked(): pass\n"
    exec(compile(source, path, "exec"), words)

    def body():
        words["inside"]()
        _spin(done)

    ended = handler_thread.submit(handler_thread.run_user_code, body)
    assert begun.wait(10)
    for _ in range(50):
        assert handler_thread.interrupt(Interrupt) is False
    leave.acquire()
    wait_until(lambda: handler_thread.interrupt(Interrupt))
    assert isinstance(ended.result(10)[1], Interrupt)


def test_a_query_cancel_never_hits_the_next_call(handler_thread):
    def sleep():
        handler_thread.prepare()
        jobs.query("SELECT pg_sleep(30)")

    first = handler_thread.submit(sleep)
    cancel = wait_until(handler_thread.queries)
    cancel()
    with pytest.raises(DatabaseError):
        first.result(20)
    second = handler_thread.submit(lambda: jobs.query("SELECT pg_sleep(0.3), 5")[1])
    wait_until(handler_thread.queries)
    cancel()  # late: it was meant for the first
    assert second.result(20) == 5


@pytest.mark.spec("D42", "D120")
def test_a_worker_leaves_no_thread_and_no_session_behind(work, body):
    running = work()
    for job in [jobs.call.enqueue(body(backend)) for _ in range(8)]:
        running.final(job)
    assert running.own_threads()
    assert running.stop() == 0
    assert running.own_threads() == []
    wait_until(lambda: sql(SESSIONS) == [])


def test_a_slow_thread_does_not_hold_up_the_loop(work, body, shared):
    running = work(concurrency=2)
    slow = jobs.call.enqueue(body(lambda: shared.events["go"].wait(30) and None))
    running.state(slow, State.RUNNING)
    began = time.monotonic()
    assert running.final(jobs.aadd.enqueue(1, 2)).result == 3
    assert time.monotonic() - began < 25
    shared.events["go"].set()
    running.final(slow)
    assert [a.outcome for a in attempts(slow)] == ["SUCCEEDED"]


@pytest.mark.parametrize("kind", ["call", "acall"])
def test_what_a_handler_left_uncommitted_is_logged_with_its_job(work, body, kind):
    running = work()

    async def coroutine():
        await sync_to_async(_left_open)()

    name = body(_left_open if kind == "call" else coroutine)
    with captured() as entries:
        logs.PROCESSORS.insert(0, merge_contextvars)
        job = getattr(jobs, kind).enqueue(name)
        running.final(job)
        running.wait(lambda: [e for e in entries if e["event"] == "transaction_left_open"])
        running.final(jobs.add.enqueue(1, 2))
    [line] = [e for e in entries if e["event"] == "transaction_left_open"]
    assert (line["database"], line["job"]) == ("default", int(job.id))
    assert not Group.objects.exists()
