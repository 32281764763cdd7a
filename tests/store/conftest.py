"""Connections as the worker's: psycopg, async, autocommit."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import AsyncConnection

from jobqueue import conf


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
