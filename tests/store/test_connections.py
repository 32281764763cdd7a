"""Calls that cannot hang, whatever stands between the worker and its database."""

import ast
import asyncio
import logging
import time
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

import jobqueue
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session, bounded
from jobqueue.store.error_classes import CallTimeout, is_refused, is_transient
from tests.events import captured
from tests.processes.proxy import Proxy
from tests.rows import one
from tests.waiting import until

BOUND = 0.3
SLACK = 1.5  # what a busy machine may add; psycopg's own clean-up would take five seconds and more


async def answer(connection, statement="SELECT 1"):
    return await one(connection, statement)


@pytest_asyncio.fixture
async def proxy(parameters):
    async with Proxy(parameters["host"], int(parameters.get("port") or 5432)) as proxy:
        yield proxy


@pytest.fixture
def far(parameters, proxy):
    host, port = proxy.address
    return {**parameters, "host": host, "port": port}


@pytest_asyncio.fixture
async def session(far):
    session = Session(ConnectionParameters.fixed(far), "claim")
    yield session
    await session.close()


async def timed(call):
    start = time.monotonic()
    with pytest.raises((CallTimeout, asyncio.CancelledError)):
        await call
    return time.monotonic() - start


@pytest.mark.spec("S146", "S149", "A28")
@pytest.mark.parametrize("when", ["connecting", "preparing", "asking"])
async def test_a_call_through_a_black_hole_returns_at_its_bound(session, proxy, when, caplog):
    caplog.set_level(logging.WARNING)
    if when == "asking":
        assert await session.call(answer, 5) == 1
    elif when == "preparing":

        async def prepare(connection):
            proxy.swallow = True
            await answer(connection)

        session.prepare = prepare
    proxy.swallow = when != "preparing"
    assert await timed(session.call(answer, BOUND)) < BOUND + SLACK
    assert session.connection is None
    proxy.heal()
    session.prepare = None
    assert await session.call(answer, 5) == 1
    assert not caplog.messages  # psycopg has asked nobody to cancel a query


@pytest.mark.spec("S146", "S149", "S96")
@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancelled_call_returns_at_once_from_a_black_hole(session, proxy, cancels, caplog):
    caplog.set_level(logging.WARNING)
    await session.call(answer, 5)
    proxy.swallow = True
    task = asyncio.ensure_future(session.call(answer, 30))
    await proxy.swallowed.wait()
    start = time.monotonic()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - start < SLACK
    assert session.connection is None
    assert not caplog.messages


@pytest.mark.spec("S149")
async def test_closing_waits_for_no_answer(session, proxy):
    await session.call(answer, 5)
    proxy.swallow = True
    start = time.monotonic()
    await session.close()
    assert time.monotonic() - start < SLACK


async def test_an_answer_in_the_moment_of_the_bound_counts(connection):
    async def slow_to_wake():
        time.sleep(0.1)  # noqa: ASYNC251  (the loop is late: bound and answer are due together)
        return "answer"

    assert await bounded(connection, slow_to_wake(), 0.01) == "answer"


async def test_no_time_left_means_that_nothing_is_sent(session):
    await session.call(answer, 5)
    kept = session.connection

    async def never(connection):
        raise AssertionError

    with pytest.raises(CallTimeout):
        await bounded(kept, never(kept), 0)
    assert not kept.closed


async def test_connecting_and_asking_share_one_bound(session, proxy, connection):
    proxy.delay = (0.2, 0.2)
    assert await timed(session.call(answer, 0.5, "SELECT pg_sleep(10)")) < 0.5 + SLACK
    end = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE %s"
    )
    await one(connection, end, "SELECT pg_sleep%")


@pytest.mark.parametrize("fault", ["terminate", "cut", "half_close"])
async def test_a_session_that_ended_while_idle_is_replaced_before_it_is_used(
    session, proxy, connection, fault
):
    pid = await session.call(answer, 5, "SELECT pg_backend_pid()")
    if fault == "terminate":
        await connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    else:
        getattr(proxy, fault)()
    await until(lambda: _readable(session.connection))
    assert await session.call(answer, 5, "SELECT pg_backend_pid()") != pid
    assert session.born == 2


def _readable(connection):
    import select

    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return poll.poll(0)


READ_ONLY = "SELECT set_config('default_transaction_read_only', 'on', false)"


async def test_a_session_of_a_read_only_server_is_not_kept(session):
    await session.call(answer, 5, READ_ONLY)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
        await session.call(answer, 5, "UPDATE jobqueue_job SET priority = 1 RETURNING id")
    assert is_transient(caught.value)
    assert session.connection is None


async def test_a_failed_statement_keeps_the_session(session):
    with pytest.raises(psycopg.errors.DivisionByZero):
        await session.call(answer, 5, "SELECT 1/0")
    assert session.connection is not None
    assert await session.call(answer, 5) == 1
    assert session.born == 1


WEATHER = ["08006", "40001", "40P01", "53300", "53200", "57014", "57P01", "57P03", "57P05"]
WEATHER += ["58030", "55P03", "25006", "25P03", "25P04"]


@pytest.mark.spec("S47")
def test_what_passes_by_itself_is_transient_and_nothing_else_is():
    for state in WEATHER:
        assert is_transient(psycopg.errors.lookup(state)()), state
    for state in ["42P01", "42501", "42703", "23505", "22003", "28P01", "3D000", "XX000"]:
        assert not is_transient(psycopg.errors.lookup(state)()), state
    assert is_transient(CallTimeout())
    assert is_transient(ConnectionResetError())
    assert not is_transient(ValueError())


@pytest.mark.spec("S47")
@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('FATAL:  password authentication failed for user "x"', True),
        ('FATAL:  Peer authentication failed for user "x"', True),
        ("fe_sendauth: no password supplied", True),
        ('FATAL:  database "x" does not exist', True),
        ('FATAL:  role "x" does not exist', True),
        ('FATAL:  role "x" is not permitted to log in', True),
        ('FATAL:  no pg_hba.conf entry for host "x"', True),
        ("FATAL:  sorry, too many clients already", False),
        ("FATAL:  the database system is starting up", False),
        ("connection refused", False),
        ('socket "/x/.s.PGSQL.5432" failed: No such file or directory', False),
    ],
)
def test_a_refused_login_is_no_server_that_is_away(text, refused):
    error = psycopg.OperationalError(text)
    assert (is_refused(error), is_transient(error)) == (refused, not refused)


@pytest.mark.spec("S146", "S149")
def test_only_the_one_helper_puts_a_bound_around_a_database_call():
    """Where asyncio.timeout stands, nothing but an event, a task or the group's own end is awaited;
    wait_for stands nowhere. And only the helper's module connects."""
    wrong = []
    folder = Path(jobqueue.__file__).parent
    for path in [*folder.glob("store/*.py"), *folder.glob("worker/**/*.py")]:
        if path.name == "probe.py":  # it talks to whoever asks, never to the database
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "wait_for":
                wrong.append((path.name, node.lineno))
            if isinstance(node, ast.AsyncWith) and any(map(_is_timeout, node.items)):
                awaits = [n for n in ast.walk(node) if isinstance(n, ast.Await)]
                wrong += [(path.name, n.lineno) for n in awaits if not _is_event(n.value)]
            connects = isinstance(node, ast.Attribute) and node.attr == "connect"
            if connects and path.name != "connections.py":
                wrong.append((path.name, node.lineno))
    assert wrong == []


def _is_timeout(item):
    call = item.context_expr
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("asyncio.timeout")


def _is_event(value):
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".wait")


@pytest.mark.spec("S131")
async def test_a_fresh_connection_is_opened_before_the_old_one_is_closed(session, proxy):
    old = await session.open(5)
    pid, most = old.info.backend_pid, []
    session.prepare = lambda connection: _noted(most, proxy)
    session.renew()
    assert await session.call(answer, 5) == 1
    assert most == [2]
    assert old.closed
    assert session.connection.info.backend_pid != pid


async def _noted(most, proxy):
    most.append(len(proxy.purposes()))


@pytest.mark.spec("S131")
async def test_where_no_fresh_connection_can_be_had_the_old_one_serves_on(session, proxy):
    old = await session.open(5)
    proxy.refuse = True
    session.renew()
    with captured() as logs:
        assert await session.call(answer, 5) == 1
        assert session.connection is old
        assert [entry["event"] for entry in logs] == ["reconnect_failed"]
        assert await session.call(answer, 5) == 1  # and is not tried again for each call
        assert len(logs) == 1


@pytest.mark.spec("S47")
async def test_a_session_whose_prepared_statement_is_gone_is_replaced(session):
    """As after a pooler's reset, or a pipeline that failed before it came to the statement."""
    old = await session.open(5)
    old.prepare_threshold = 0
    assert await session.call(answer, 5) == 1
    await old.execute("DEALLOCATE ALL", prepare=False)
    old._prepared._names[(b"SELECT 1", ())] = b"_gone"
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        await session.call(answer, 5)
    assert await session.call(answer, 5) == 1
    assert session.connection is not old
