"""What every test may use; fixtures of one folder stand in that folder's conftest.py."""

import os
import shutil
from pathlib import Path

import pytest

CHROMIUM_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
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
