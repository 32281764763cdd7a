"""A real browser, a real server, and somebody who may do everything."""

from collections.abc import Generator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from tests.browser.chromium import ARGUMENTS

expect.set_options(timeout=15_000)


@pytest.fixture
def desk(
    chromium: Path, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> Generator[Page]:
    """The dashboard, logged in as ann. The page's script errors fail the test."""
    # Playwright's loop runs in this thread, in which the test also writes rows.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    User.objects.create_superuser("ann", password="ann")
    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(base_url=live_server.url, timezone_id="Europe/Berlin")
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto("/admin/login/?next=/admin/jobqueue/dashboard/")
        page.fill("#id_username", "ann")
        page.fill("#id_password", "ann")
        page.click("[type=submit]")
        page.wait_for_url("**/dashboard/")
        yield page
        browser.close()
    assert not faults
