"""What every test may use; fixtures of one folder stand in that folder's conftest.py."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_django
from django.db import connection
from django.test import override_settings

from tests.documents import security_tests

CHROMIUM_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes, too")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Names without addresses of objects: the processes that share the tests must agree on them."""
    try:
        return argname if " at 0x" in repr(val) else None
    except ValueError:  # a whole number with more digits than Python writes
        return argname


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    promised = set(security_tests())
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in promised or name.partition("::")[0] in promised:
            item.add_marker("security")
    unwanted = {}
    if not config.getoption("--long"):
        unwanted["long"] = pytest.mark.skip(reason="takes minutes: run with --long")
    if find_chromium() is None and os.environ.get("BROWSER_TESTS") != "required":
        unwanted["browser"] = pytest.mark.skip(reason="no Chromium was found")
    for item in items:
        for name, skip in unwanted.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


def find_chromium() -> Path | None:
    """Return the browser's program: CHROMIUM where set, else one that is installed."""
    names = [os.environ.get("CHROMIUM"), *CHROMIUM_NAMES]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    return Path(found) if found else None


@pytest.fixture(scope="session")
def chromium() -> Path:
    path = find_chromium()
    if path is None:
        pytest.fail("BROWSER_TESTS=required, but no Chromium was found: install it or set CHROMIUM")
    return path


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[None]:
    """At the end, sessions of processes that were killed a moment ago hold up no clean-up."""
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """Hashing passwords well takes half a second each."""
    quick = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    with override_settings(PASSWORD_HASHERS=quick):
        yield


@pytest.fixture
def operators_tasks(settings: Any) -> None:
    """The tasks of `tests.web`, which is an app here, may be scheduled by operators."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.web"]
    settings.JOBQUEUE = {**settings.JOBQUEUE, "OPERATOR_TASKS": ["*"]}
