"""A pytest plugin that gives the whole session a database before the settings are loaded."""

import os
from collections.abc import Generator
from contextlib import ExitStack

import pytest

from project import postgres


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Start the tests' own server, never the demo's, where DATABASE_URL names none."""
    if not os.environ.get("DATABASE_URL"):
        stack = ExitStack()
        # What the tests write need not survive a power cut.
        server = postgres.running(postgres.TESTS, fsync="off")
        os.environ["DATABASE_URL"] = stack.enter_context(server)
        early_config.add_cleanup(stack.close)
    yield
