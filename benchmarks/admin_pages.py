"""Server time and queries of every page of the admin, at whatever size the tables have.

Fill them first: `python benchmarks/fill.py 5000000`. Then `python benchmarks/admin_pages.py`. Each
page is requested several times: the first time is shown in brackets, since its data may not be in
memory yet; of all times the second slowest counts. If the server runs on this machine, the mean CPU
time (of Python and of the server session) follows, since a busy machine does not change it. Exit
code 1 when a page is over its limit.
"""

import os
import sys
import time
from dataclasses import dataclass

import django
import psutil  # type: ignore[import-untyped]
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, setup_test_environment

LIMIT_SECONDS, LIMIT_QUERIES, ROUNDS = 0.3, 15, 7


def main() -> int:
    from django.contrib.auth.models import User

    from jobqueue.insight import stats

    user, _ = User.objects.get_or_create(
        username="benchmark", defaults={"is_superuser": True, "is_staff": True}
    )
    client = Client()
    client.force_login(user)
    figures = stats.figures()
    print(f"{figures.total.value:,} jobs" + ("" if figures.total.exact else " (estimated)"))
    failed = False
    for address in addresses():
        found = measure(client, address)
        bad = found.seconds > LIMIT_SECONDS or found.queries > LIMIT_QUERIES
        failed |= bad
        print(found, f"{address}{'  <--' if bad else ''}")
    for verb, form in (
        ("retry", {"scope": "all", "filter": "state=DEAD"}),
        ("cancel", {"scope": "all", "filter": "queue=mail"}),
    ):
        found = measure(client, f"/admin/jobqueue/job/act/{verb}/", form)
        print(found, f"preview of {verb}, all that match")
    user.delete()
    return int(failed)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one page took."""

    seconds: float
    first: float
    processors: float
    queries: int

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1000:7.1f} ms ({self.first * 1000:.0f})"
            f" {self.processors * 1000:6.1f} ms CPU {self.queries:3} queries "
        )


def measure(client: Client, address: str, form: dict[str, str] | None = None) -> Figures:
    times, queries, before = [], 0, processors()
    for _ in range(ROUNDS):
        with CaptureQueriesContext(connection) as captured:
            start = time.perf_counter()
            answer = client.post(address, form) if form else client.get(address)
            times.append(time.perf_counter() - start)
        assert answer.status_code == 200, (address, answer.status_code)
        queries = max(queries, len(captured))
    return Figures(
        seconds=sorted(times)[-2],
        first=times[0],
        processors=(processors() - before) / ROUNDS,
        queries=queries,
    )


def processors() -> float:
    """Seconds of CPU that this process and its session in the server have taken."""
    connection.ensure_connection()
    try:
        session = psutil.Process(connection.connection.info.backend_pid).cpu_times()
    except psutil.NoSuchProcess:
        return time.process_time()
    return time.process_time() + session.user + session.system


def addresses() -> list[str]:
    from jobqueue.admin import pagination
    from jobqueue.admin.filters import Filters
    from jobqueue.insight import stats
    from jobqueue.models import Job, Schedule, Worker
    from jobqueue.states import State

    jobs = "/admin/jobqueue/job/"
    found = ["/admin/jobqueue/dashboard/", "/admin/jobqueue/dashboard/live/", jobs]
    found += [f"{jobs}?state={state}" for state in (*State, stats.RETRYING)]
    found += [
        f"{jobs}?task=shop.tasks.rare",
        f"{jobs}?task=shop.tasks.rare&state=DEAD",
        f"{jobs}?task=shop.tasks.task3&queue=imports",
        f"{jobs}?q=rare",
        f"{jobs}?q=task1",
        f"{jobs}?q=4000001",
        f"{jobs}?queue=mail&state=SUCCEEDED",
        f"{jobs}?queue=nowhere",
        f"{jobs}?queue=nowhere&state=SUCCEEDED",
        f"{jobs}?state=READY&queue=mail",
        f"{jobs}?state=DEAD&age=over-1d",
        f"{jobs}?age=over-7d",
        f"{jobs}?state=SUCCEEDED&task=shop.tasks.rare&age=under-1d",
        f"{jobs}?tenant=nobody",
        f"{jobs}?text=user77777%40",
        f"{jobs}?text=is+closed&state=DEAD",
        f"{jobs}?text=nothing+like+it&state=SUCCEEDED",
    ]
    deep = Job.objects.filter(state=State.SUCCEEDED).order_by("finished_at").first()
    if deep is not None:
        cursor = pagination.BY_END.write(deep)
        found.append(f"{jobs}?{Filters(state='SUCCEEDED').query}&after={cursor}")
        found.append(f"{jobs}?{Filters(state='SUCCEEDED').query}&before={cursor}")
        found.append(f"{jobs}?{Filters(state='SUCCEEDED', queue='mail').query}&before={cursor}")
        found.append(f"{jobs}?after={pagination.NEWEST.write(deep)}")
        found.append(f"{jobs}?task=shop.tasks.task3&before={pagination.NEWEST.write(deep)}")
    for state in State:
        if (job := Job.objects.filter(state=state).first()) is not None:
            found.append(f"{jobs}{job.pk}/")
    desk = "/admin/jobqueue"
    found += [f"{desk}/{page}/" for page in ("queue", "worker", "leaderlease", "schedule")]
    for phase in ("RUNNING", "STOPPED"):
        if (worker := Worker.objects.filter(phase=phase).first()) is not None:
            found.append(f"{desk}/worker/{worker.pk}/")
    if (schedule := Schedule.objects.first()) is not None:
        found += [f"{desk}/schedule/{schedule.pk}/", f"{desk}/schedule/{schedule.pk}/edit/"]
    return [*found, f"{desk}/schedule/new/"]


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    setup_test_environment()
    sys.exit(main())
