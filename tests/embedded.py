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
        os.environ["DATABASE_URL"] = stack.enter_context(postgres.running(postgres.TESTS))
        early_config.add_cleanup(stack.close)
    yield
