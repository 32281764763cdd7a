"""Makes the pictures of the admin for the documentation: `python scripts/screenshots.py`.

Uses Django's test database with made-up rows; light and dark.
"""
# ruff: noqa: S106, S311  (a throw-away database, and dice for its rows)

import contextlib
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
# Playwright's loop runs in this thread; the rows are written before and after its steps.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"

import django  # noqa: E402

from project import postgres  # noqa: E402

server = contextlib.ExitStack()
os.environ["DATABASE_URL"] = server.enter_context(postgres.running(postgres.TESTS))
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: E402
from django.db import connection  # noqa: E402
from django.test.testcases import LiveServerThread  # noqa: E402
from django.utils import timezone  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402

from jobqueue.models import (  # noqa: E402
    Job,
    JobEvent,
    LeaderLease,
    Minute,
    Queue,
    Schedule,
    ScheduleTick,
)
from jobqueue.states import Outcome, State  # noqa: E402
from tests.browser.chromium import ARGUMENTS  # noqa: E402
from tests.web import rows  # noqa: E402

IMAGES = ROOT / "docs" / "images"
TASKS = ("contacts.tasks.import_file", "contacts.tasks.send_receipt", "webhooks.tasks.deliver")
TRACEBACK = """Traceback (most recent call last):
  File "webhooks/tasks.py", line 41, in deliver
    response.raise_for_status()
HTTPError: 503 Service Unavailable for https://example.org/hooks/orders
"""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with site() as address, sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        pages = fill()
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": 1280, "height": 800},
                color_scheme=scheme,
                timezone_id="Europe/Berlin",
                reduced_motion="reduce",
            )
            page = context.new_page()
            log_in(page, address)
            for name, where in pages.items():
                page.goto(address + where)
                page.reload()  # the first request gives the server the browser's time zone
                page.screenshot(path=IMAGES / f"{name}-{scheme}.png", full_page=name != "jobs")
            page.goto(f"{address}/admin/jobqueue/job/?state=DEAD")
            page.get_by_label("all matching jobs, on every page").check()
            page.get_by_role("button", name="Retry").click()
            page.wait_for_url("**/act/retry/")
            page.screenshot(path=IMAGES / f"confirm-{scheme}.png")
            page.set_viewport_size({"width": 390, "height": 844})
            page.goto(address + pages["dashboard"])
            page.screenshot(path=IMAGES / f"phone-{scheme}.png")
            context.close()
        browser.close()


@contextmanager
def site() -> Iterator[str]:
    """The project on a free port of this machine, over an empty test database."""
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    thread = LiveServerThread("127.0.0.1", StaticFilesHandler)
    thread.daemon = True
    thread.start()
    thread.is_ready.wait(10)
    try:
        yield f"http://127.0.0.1:{thread.port}"
    finally:
        thread.terminate()
        with connection.cursor() as cursor:  # the site's threads close theirs a little later
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        connection.creation.destroy_test_db(name, verbosity=0)


def log_in(page: Page, address: str) -> None:
    page.goto(f"{address}/admin/login/")
    page.fill("#id_username", "ann")
    page.fill("#id_password", "ann")
    page.click("[type=submit]")


def fill() -> dict[str, str]:
    """Write the rows and return the pages to show."""
    dice, now = random.Random(7), timezone.now()
    User.objects.create_superuser("ann", password="ann")
    workers = [
        rows.worker(name=f"web-{n}", queues=["default", "mail", "imports"], version="0.1.0")
        for n in (1, 2)
    ]
    report = {"completed": 412, "interrupted": 1, "returned": 0, "unrecorded": 0, "claimed": 413}
    for n in range(3):
        stopped = rows.worker(
            name=f"web-{n % 2 + 1}",
            version="0.1.0",
            phase="STOPPED",
            last_seen_at=now - timedelta(hours=n + 1),
            stop_report={**report, "reason": "TERM", "duration_seconds": 1.4 + n},
        )
    LeaderLease.objects.create(
        name="maintenance",
        holder=workers[0].pk,
        term=12,
        acquired_at=now - timedelta(hours=3),
        expires_at=now + timedelta(days=1),
    )
    lease = now + timedelta(days=1)
    for n in range(4):
        rows.job(
            State.RUNNING,
            task=TASKS[n % 3],
            queue="imports",
            kwargs={"import": 70 + n},
            worker=workers[n % 2].pk,
            lease_expires_at=lease,
            enqueued_at=now - timedelta(seconds=91),
            run_at=now - timedelta(seconds=91),
            started_at=(start := now - timedelta(seconds=dice.randint(20, 90))),
            claimed_at=start,
            progress={"done": 900 * (n + 1), "total": 5000, "note": "rows"},
        )
    for n in range(60):
        end = now - timedelta(minutes=n * 2)
        rows.job(State.SUCCEEDED, task=TASKS[n % 2], queue="mail", attempts=1, finished_at=end)
    for n in range(7):
        rows.job(
            State.SCHEDULED,
            task=TASKS[2],
            attempts=n % 4 + 1,
            failures=n % 4 + 1,
            reason="retry",
            run_at=now + timedelta(seconds=40 * n + 25),
            last_error="HTTPError: 503 Service Unavailable",
        )
    for n in range(5):
        rows.job(queue="reports", run_at=now - timedelta(minutes=n))
    Queue.objects.create(name="reports", paused_at=now - timedelta(minutes=9), paused_by="ann")
    schedule = Schedule.objects.create(
        name="nightly report",
        task="reports.tasks.nightly",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        queue="reports",
        next_run_at=now + timedelta(hours=5),
        last_run_at=now - timedelta(hours=19),
    )
    for n in range(3):
        ScheduleTick.objects.create(
            schedule=schedule,
            tick_at=(tick := now - timedelta(hours=19, days=n)),
            fired_at=tick,
            fired_by=f"web-1, term {12 - n}",
            job=dice.randint(1, 60),
        )
    dead = dead_letter(now)
    waiting = rows.job(queue="reports", kwargs={"month": "2026-11"})
    history(now, dice)
    running = Job.objects.filter(state=State.RUNNING).order_by("pk")[0]
    note = "The handler blocked the event loop for 3.1 s at:\n"
    note += '  File "contacts/tasks.py", line 57, in check\n    time.sleep(3)'
    JobEvent.objects.create(job=running.pk, kind="blocked_loop", note=note)
    return {
        "dashboard": "/admin/jobqueue/dashboard/",
        "jobs": "/admin/jobqueue/job/",
        "dead-letter": f"/admin/jobqueue/job/{dead}/",
        "waiting": f"/admin/jobqueue/job/{waiting.pk}/",
        "running": f"/admin/jobqueue/job/{running.pk}/",
        "queues": "/admin/jobqueue/queue/",
        "workers": "/admin/jobqueue/worker/",
        "worker": f"/admin/jobqueue/worker/{stopped.pk}/",
        "leader": "/admin/jobqueue/leaderlease/",
        "schedules": "/admin/jobqueue/schedule/",
        "schedule": f"/admin/jobqueue/schedule/{schedule.pk}/",
        "schedule-form": f"/admin/jobqueue/schedule/{schedule.pk}/edit/",
    }


def dead_letter(now: datetime) -> int:
    error = "HTTPError: 503 Service Unavailable"
    job = rows.job(
        State.DEAD,
        task=TASKS[2],
        attempts=3,
        failures=3,
        max_attempts=3,
        reason="attempts spent",
        kwargs={"order": 4711, "token": "not shown", "url": "https://example.org/hooks/orders"},
        last_error=error,
        enqueued_at=now - timedelta(minutes=11),
    )
    for number, outcome in enumerate((Outcome.TIMED_OUT, Outcome.LOST, Outcome.FAILED), 1):
        failed = outcome == Outcome.FAILED
        rows.attempt(
            job,
            number,
            outcome,
            error_class="HTTPError" if failed else "",
            error_message="503 Service Unavailable" if failed else "",
            traceback=TRACEBACK if failed else "",
            recorded_by="leader" if outcome == Outcome.LOST else "holder",
            late_outcome="SUCCEEDED" if outcome == Outcome.LOST else "",
        )
    JobEvent.objects.create(job=job.pk, kind="retry", actor="ann", note="the other side is back")
    return job.pk


def history(now: datetime, dice: random.Random) -> None:
    start = now.replace(second=0, microsecond=0)
    Minute.objects.bulk_create(
        Minute(
            at=start - timedelta(minutes=n),
            succeeded=dice.randint(180, 320) + 200 * (n % 300 < 40),
            failed=dice.choice([0, 0, 1, 2, 9]),
            wait_p50=dice.uniform(0.004, 0.02),
            wait_p95=dice.uniform(0.05, 0.2) + 0.4 * (n % 300 < 40),
        )
        for n in range(1, 1440)
    )


if __name__ == "__main__":
    with server:
        main()
