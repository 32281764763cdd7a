"""Connection parameters that change while a worker runs, and code that does not find them."""

import asyncio
import threading

import pytest

from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import ParametersUnavailable, is_transient
from tests.events import captured
from tests.rows import one

pytestmark = pytest.mark.spec("D125", "S47")


async def name(connection):
    return await one(connection, "SELECT current_setting('search_path')")


class Provider:
    """A project's engine: a token of the moment, which a test rotates, delays or breaks."""

    def __init__(self, parameters):
        self.parameters, self.token, self.fails, self.calls = parameters, "first", False, 0
        self.go = threading.Event()
        self.go.set()
        self.at_once = self.most = 0

    def __call__(self):
        self.calls += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            self.go.wait(30)
            if self.fails:
                raise SystemExit("no token")
            return {**self.parameters, "options": f"-c search_path={self.token}"}
        finally:
            self.at_once -= 1


@pytest.fixture
def provider(parameters):
    provider = Provider(parameters)
    yield provider
    provider.go.set()


@pytest.fixture
def session(provider):
    return Session(ConnectionParameters(provider), "claim")


async def test_every_new_connection_asks_afresh(provider, session):
    assert await session.call(name, 5) == "first"
    provider.token = "second"
    assert await session.call(name, 5) == "first"  # the session lives on
    session.renew()
    assert await session.call(name, 5) == "second"
    await session.close()
    provider.token = "third"
    assert await session.call(name, 5) == "third"
    assert provider.calls == 3
    await session.close()


async def test_while_they_cannot_be_found_the_last_known_are_tried_once(provider, session):
    assert await session.call(name, 5) == "first"
    await session.close()
    provider.fails = True
    with captured() as logs:
        assert await session.call(name, 5) == "first"
    assert [line["event"] for line in logs] == ["connection_parameters_failed"]
    await session.close()
    with pytest.raises(ParametersUnavailable, match="SystemExit: no token") as raised:
        await session.call(name, 5)
    assert is_transient(raised.value)
    provider.fails, provider.token = False, "later"
    assert await session.call(name, 5) == "later"
    provider.fails = True
    await session.close()
    assert await session.call(name, 5) == "later"
    await session.close()


async def test_one_that_hangs_is_bounded_and_called_once_for_all_sessions(provider):
    parameters = ConnectionParameters(provider)
    sessions = [Session(parameters, f"test {number}") for number in range(4)]
    provider.go.clear()
    calls = [asyncio.ensure_future(session.call(name, 0.6)) for session in sessions]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in ended} == {ParametersUnavailable}
    assert (provider.calls, provider.most) == (1, 1)
    provider.go.set()
    assert await sessions[0].call(name, 5) == "first"
    await sessions[0].close()
