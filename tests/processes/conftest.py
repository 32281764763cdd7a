from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.fleet import Fleet
from tests.store.conftest import connect, connection, parameters

__all__ = ["connect", "connection", "parameters"]


@pytest.fixture
def fleet(transactional_db: None, tmp_path: Path) -> Iterator[Fleet]:
    """Workers of this test's database, ended with the test."""
    with Fleet(tmp_path) as started:
        yield started
