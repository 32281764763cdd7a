"""Connections as the worker's: psycopg, async, autocommit."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import AsyncConnection

from jobqueue import conf
from tests.worker.jobs import Shared
from tests.worker.jobs import shared as jobs_shared
from tests.worker.running import Running


@pytest.fixture
def parameters(transactional_db: None) -> dict[str, Any]:
    """What psycopg needs to reach the test's database."""
    return conf.connection_parameters()


@pytest_asyncio.fixture
async def connect(
    parameters: dict[str, Any],
) -> AsyncIterator[Callable[[], Awaitable[AsyncConnection[Any]]]]:
    """Open as many connections as a test wants; all are closed after it."""
    opened = []

    async def connect() -> AsyncConnection[Any]:
        opened.append(await psycopg.AsyncConnection.connect(autocommit=True, **parameters))
        return opened[-1]

    yield connect
    for connection in opened:
        await connection.close()


@pytest_asyncio.fixture
async def connection(
    connect: Callable[[], Awaitable[AsyncConnection[Any]]],
) -> AsyncConnection[Any]:
    return await connect()


@pytest.fixture
def shared() -> Iterator[Shared]:
    """What the test and its handlers have in common; `extra` holds the handlers' bodies."""
    jobs_shared.clear()
    yield jobs_shared
    for event in jobs_shared.events.values():
        event.set()
    jobs_shared.clear()


@pytest.fixture
def body(shared: Shared) -> Callable[[Callable[..., Any]], str]:
    """Give a function to the tasks of tests/worker/jobs.py; returns the name to pass them."""

    def body(function: Callable[..., Any]) -> str:
        name = f"body-{len(shared.extra)}"
        shared.extra[name] = function
        return name

    return body


@pytest.fixture
def work(parameters: dict[str, Any], shared: Shared) -> Iterator[Callable[..., Running]]:
    """Start workers in threads of this process; they are stopped with the test."""
    with ExitStack() as stack:

        def work(**settings: Any) -> Running:
            return stack.enter_context(Running(parameters, **settings))

        yield work
        for event in shared.events.values():
            event.set()
