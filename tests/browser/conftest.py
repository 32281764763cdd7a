"""A real browser, a real server, and somebody who may do everything."""

from collections.abc import Generator
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from tests.browser.chromium import ARGUMENTS

SOON = 30_000  # milliseconds: how long a busy machine may take for what is a blink elsewhere
expect.set_options(timeout=SOON)


@pytest.fixture(scope="module")
def window(chromium: Path, django_db_setup: None) -> Generator[Browser]:
    """One browser for a module: starting it takes seconds.

    The database comes first: while Playwright's loop runs, Django keeps connections of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        # Playwright's loop runs in this thread, in which the tests also write rows.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            yield browser
            browser.close()


@pytest.fixture
def desk(window: Browser, live_server: LiveServer) -> Generator[Page]:
    """The dashboard, logged in as ann. The page's script errors fail the test."""
    client = Client()
    client.force_login(User.objects.create_superuser("ann", password="ann"))
    key = client.cookies[settings.SESSION_COOKIE_NAME].value
    faults: list[str] = []
    context = window.new_context(base_url=live_server.url, timezone_id="Europe/Berlin")
    context.add_cookies(
        [{"name": settings.SESSION_COOKIE_NAME, "value": key, "url": live_server.url}]
    )
    page = context.new_page()
    page.set_default_timeout(SOON)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto("/admin/jobqueue/dashboard/")
    yield page
    context.close()
    assert not faults
