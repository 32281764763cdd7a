"""The example site as a person uses it, with a real worker."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from jobqueue.models import Job
from project.contacts import sample_data
from tests.children import Children, wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SOON = 20_000  # milliseconds


@pytest.fixture
def children(transactional_db: None, tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path) as started:
        yield started
        # Shown for a test that failed: whether its page or its job had stopped.
        print(*Job.objects.values_list("task", "state", "attempts", "last_error", "progress"))


@pytest.fixture
def browser_window(chromium: Path, children: Children) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def site(children: Children) -> str:
    address = children.web()
    children.worker()
    return address


@pytest.fixture
def tab(browser_window: Browser, site: str) -> Iterator[Page]:
    """A tab in which no script fails."""
    page = browser_window.new_page(base_url=site)
    page.set_default_timeout(SOON)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def word(page: Page) -> str:
    return page.locator("#status").inner_text()


def test_the_page_follows_the_import_of_an_uploaded_file(
    tab: Page, children: Children, tmp_path: Path
) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes(sample_data.as_csv(sample_data.lines(40_000)))
    tab.goto("/")
    tab.get_by_label("CSV file").set_input_files(file)
    tab.get_by_label("E-mail the receipt to").fill("me@x.example")
    tab.get_by_role("button", name="Upload and import").click()

    seen: set[float] = set()

    def is_over() -> bool:
        seen.update(tab.locator("#bar").evaluate_all("bars => bars.map(bar => bar.value)"))
        return word(tab) == "imported"

    wait_until(is_over, seconds=60, every=0.1)
    assert len(seen) >= 3, "the bar did not move"
    expect(tab.locator("#sentence")).to_have_text("New contacts: 40,000; updated: 0.")
    expect(tab.locator("#receipt")).to_have_text(
        "The receipt was sent to me@x.example.", timeout=SOON
    )
    assert any("To: me@x.example" in letter for letter in children.letters())
    tab.get_by_role("link", name="All imports").click()
    expect(tab.get_by_role("heading", name="40,000 contacts")).to_be_visible()


def test_the_cancel_button_stops_a_big_import_and_none_of_it_is_kept(tab: Page) -> None:
    tab.goto("/")
    tab.get_by_role("button", name=re.compile("made-up")).click()
    expect(tab.locator("#sentence")).to_contain_text("importing", timeout=SOON)
    tab.get_by_role("button", name="Cancel the import").click()
    expect(tab.locator("#status")).to_have_text("cancelled", timeout=3_000)
    expect(tab.get_by_role("button", name="Cancel the import")).to_have_count(0)
    tab.goto("/")
    expect(tab.get_by_role("heading", name="0 contacts")).to_be_visible()


def test_a_faulty_sample_is_refused_with_its_lines(tab: Page) -> None:
    tab.goto("/")
    tab.get_by_role("button", name="Import the file with faults").click()
    expect(tab.locator("#status")).to_have_text("refused", timeout=SOON)
    expect(tab.get_by_role("row", name="502 “not an address” is not")).to_be_visible()


def test_the_page_shows_a_webhook_that_fails_twice_and_then_succeeds(tab: Page) -> None:
    tab.goto("/webhooks/")
    tab.get_by_label("The partner").select_option(label="fails twice, then accepts")
    tab.get_by_role("button", name="Send").click()
    row = tab.get_by_role("row", name="The partner fails twice")
    expect(row).to_contain_text("Attempt 1 failed", timeout=SOON)
    expect(row).to_contain_text("delivered", timeout=SOON)
    expect(row).to_contain_text("500, 502, 200")


def test_an_import_can_be_done_with_the_keyboard_alone(tab: Page) -> None:
    tab.goto("/")
    tab.get_by_role("button", name="Import the good file").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("#status")).to_have_text("imported", timeout=SOON)
    assert "imports/" in tab.url


@pytest.mark.parametrize("path", ["/", "/webhooks/"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_scrolling_sideways(
    browser_window: Browser, site: str, path: str, scheme: str
) -> None:
    context = browser_window.new_context(
        base_url=site,
        viewport={"width": 360, "height": 740},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    page.goto(path)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_without_scripts_the_import_page_refreshes_itself(
    browser_window: Browser, site: str
) -> None:
    context = browser_window.new_context(base_url=site, java_script_enabled=False)
    page = context.new_page()
    page.goto("/")
    page.get_by_role("button", name="Import the good file").click()
    expect(page.locator("#status")).to_have_text("imported", timeout=SOON)
    context.close()
