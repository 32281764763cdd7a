"""News from outside the loop: heard, proven, and looked for again after a cut."""

import asyncio
import json
from uuid import uuid4

import pytest
import pytest_asyncio

from jobqueue.states import Wake
from jobqueue.store import heartbeat
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.notify import prove
from jobqueue.worker.notifications.dispatch import Dispatcher
from jobqueue.worker.notifications.listener import Listener
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from tests.processes.proxy import Proxy
from tests.rows import one
from tests.waiting import until
from tests.worker.faults import end


@pytest_asyncio.fixture
async def proxy(parameters):
    async with Proxy(parameters["host"], int(parameters.get("port") or 5432)) as proxy:
        yield proxy


class Ear:
    """A listener as a service, with a beat that sends its proofs."""

    def __init__(self, parameters, proxy, connection):
        host, port = proxy.address
        self.me, self.heard, self.connection = uuid4(), [], connection
        self.outage_log = OutageLog()
        self.dispatcher = Dispatcher(
            str(self.me),
            on_ready=lambda queue, priority: self.heard.append(("ready", queue)),
            on_scheduled=lambda at: self.heard.append(("scheduled", at)),
            on_cancel=lambda: self.heard.append(("cancel",)),
            on_vacant=lambda: self.heard.append(("vacant",)),
            on_died=lambda: self.heard.append(("died",)),
        )
        self.listener = Listener(
            ConnectionParameters.fixed({**parameters, "host": host, "port": port}),
            self.me,
            self.dispatcher,
            ErrorPolicy("listen", self.outage_log),
        )
        self.task = asyncio.ensure_future(self.listener.run())

    async def beat(self):
        proof = self.listener.next_proof()
        given = {"lease": 30.0, "leader_lease": 15.0, "phase": "", "wake": self.listener.state}
        channel = self.listener.channel
        await heartbeat.beat(self.connection, self.me, [], **given)
        if proof:
            await prove(self.connection, channel, proof)

    async def proven(self):
        async def beaten():
            await self.beat()
            return self.listener.is_proven

        await until(beaten, every=0.05)

    async def notify(self, payload):
        await one(self.connection, "SELECT pg_notify('jobqueue', %s)", payload)


@pytest_asyncio.fixture
async def ear(parameters, proxy, connection):
    ear = Ear(parameters, proxy, connection)
    yield ear
    await end(ear.task)
    assert ear.listener.session.connection is None


@pytest.mark.spec("S41", "D27")
async def test_whatever_is_not_understood_is_ignored_and_the_next_is_heard(ear):
    await ear.proven()
    await until(lambda: ("cancel",) in ear.heard)
    ear.heard.clear()
    odd = ["", "not json", "{}", "[" * 7900, "🦜" * 1900, "[]", "null", "1", '"ready"']
    odd += ['{"kind": "unheard-of"}', '{"kind": 5}', '{"kind": "ready", "queue": 7}']
    odd += [f'{{"kind": "scheduled", "at": {at}}}' for at in ("1e400", "NaN", "9" * 400, '"x"')]
    odd += ['{"kind": "cancel", "worker": "another"}']
    for payload in odd:
        await ear.notify(payload)
    await ear.notify('{"kind": "ready", "queue": "mail"}')
    await until(lambda: ("ready", "mail") in ear.heard)
    assert [each for each in ear.heard if each != ("ready", None)] == [("ready", "mail")]
    assert not ear.task.done()


@pytest.mark.spec("S116", "S233")
async def test_each_kind_of_news_reaches_whom_it_concerns(ear):
    await ear.proven()
    ear.heard.clear()
    for message in [
        {"kind": "resumed", "queue": "mail"},
        {"kind": "scheduled", "at": 12},
        {"kind": "cancel", "worker": str(ear.me)},
        {"kind": "leader"},
        {"kind": "died"},
    ]:
        await ear.notify(json.dumps(message))
    await until(lambda: ("died",) in ear.heard)
    assert ear.heard == [
        ("ready", "mail"),
        ("scheduled", 12.0),
        ("cancel",),
        ("vacant",),
        ("died",),
    ]


@pytest.mark.spec("S233", "D25")
@pytest.mark.parametrize("fault", ["terminate", "cut", "half_close"])
async def test_after_a_loss_it_listens_again_and_has_what_was_missed_looked_for(ear, proxy, fault):
    await ear.proven()
    ear.heard.clear()
    if fault == "terminate":
        end_it = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE "
        await one(
            ear.connection,
            end_it + "datname = current_database() AND application_name = 'jobqueue listen'",
        )
    else:
        getattr(proxy, fault)()
    await until(lambda: ("ready", None) in ear.heard)
    await ear.proven()
    ear.heard.clear()
    await ear.notify('{"kind": "ready", "queue": "mail"}')
    await until(lambda: ("ready", "mail") in ear.heard)


@pytest.mark.spec("S233")
async def test_it_listens_before_it_checks_for_missed_notifications(ear, proxy, connection):
    """Whatever is committed after the look is notified: no gap between the two."""
    listening = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'jobqueue listen' "
        "AND state = 'idle' AND query LIKE 'LISTEN%%'"
    )
    seen = []

    def look(queue, priority):
        seen.append(asyncio.ensure_future(one(connection, listening)))

    ear.dispatcher.on_ready = look
    await until(lambda: seen)
    assert await seen[0] == 1


@pytest.mark.spec("S233", "S62")
async def test_a_connection_that_only_looks_alive_is_replaced(ear, proxy, caplog):
    await ear.proven()
    proxy.swallow = True
    await ear.notify('{"kind": "ready"}')
    await proxy.swallowed.wait()

    async def beaten():
        await ear.beat()
        return not ear.listener.is_proven

    await until(beaten, every=0.1)
    proxy.heal()
    await ear.proven()
    assert ear.listener.session.born >= 2


@pytest.mark.spec("S233", "S41")
async def test_where_no_notification_ever_arrives_it_says_so_once_and_the_worker_polls(
    parameters, proxy, connection, caplog, monkeypatch
):
    monkeypatch.setattr("jobqueue.worker.notifications.listener.PROOF_SECONDS", 0.01)
    ear = Ear(parameters, proxy, connection)
    ear.listener._silence.first = 0.01
    ear.listener.channel = "jobqueue_elsewhere"  # as if a pooler had kept the LISTEN to itself
    listen = ear.listener.session.prepare

    async def deaf(own):
        ear.listener.channel = "jobqueue_deaf"
        await listen(own)
        ear.listener.channel = "jobqueue_elsewhere"

    ear.listener.session.prepare = deaf

    async def silent():
        await ear.beat()
        return ear.listener._silence.failures >= 3

    await until(silent, every=0.02)
    assert not ear.listener.is_proven
    await until(lambda: ear.listener._listening)  # again; nothing has arrived yet
    assert ear.listener.state == Wake.SILENT
    assert [event.message for event in caplog.records].count("listener_silent") == 1
    await end(ear.task)


async def test_a_reconnect_that_was_asked_for_is_no_outage(ear):
    await ear.proven()
    born = ear.listener.session.born
    ear.listener.reconnect()
    await until(lambda: ear.listener.session.born > born)
    await ear.proven()
    assert not ear.outage_log._troubled


@pytest.mark.spec("S47")
async def test_while_the_database_is_away_it_says_that_the_worker_polls(ear, proxy):
    await ear.proven()
    proxy.refuse = True
    proxy.cut()
    await until(lambda: ear.outage_log._troubled)
    assert ear.listener.state.startswith("polling: ")
    assert ear.listener.next_proof() == ""
    proxy.heal()
    await ear.proven()
    assert not ear.outage_log._troubled


@pytest.mark.spec("D31")
async def test_no_news_is_lost_between_its_own_proofs(ear):
    await ear.proven()
    ear.heard.clear()
    for number in range(300):
        await ear.notify(f'{{"kind": "scheduled", "at": {number}}}')
        if number % 3 == 0:
            await ear.beat()
    await until(lambda: ("scheduled", 299.0) in ear.heard)
    assert [each for each in ear.heard if each[0] == "scheduled"] == [
        ("scheduled", float(number)) for number in range(300)
    ]


async def test_what_comes_while_the_session_still_speaks_is_heard(
    parameters, proxy, connection, monkeypatch
):
    """It arrives with the answer of another statement."""
    listen = Listener._listen

    async def interrupted(listener, fresh):
        await listen(listener, fresh)
        await fresh.execute("""SELECT pg_notify('jobqueue', '{"kind": "scheduled", "at": 5}')""")

    monkeypatch.setattr(Listener, "_listen", interrupted)
    ear = Ear(parameters, proxy, connection)
    try:
        await until(lambda: ("scheduled", 5.0) in ear.heard)
    finally:
        await end(ear.task)
