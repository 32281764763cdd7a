"""What the admin asks is answered along indexes, however long the history is."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from jobqueue.admin import job_changelist
from jobqueue.admin.filters import AGES, TABS, Filters
from jobqueue.insight import stats
from tests.store.test_statements import BELIEFS, TABLES, fill

FILTERS = [
    {},
    {"queue": "default"},
    {"task": "x.y"},
    {"q": "x."},
    {"text": "order"},
    {"worker": "0198c6f2-0000-7000-8000-000000000001"},
    *({"age": age} for age in AGES if age),
    {"task": "x.y", "age": "over-1d", "text": "order"},
]


class Plans:
    """Explains each query before it is sent, as Django's `execute_wrapper`."""

    def __init__(self) -> None:
        self.whole: dict[str, list[str]] = {}
        self.seen = 0

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if sql.lstrip().startswith(("SELECT", "WITH")):
            execute(f"EXPLAIN {sql}", params, many, context)
            plan = "\n".join(line for (line,) in context["cursor"].fetchall())
            whole = [table for table in TABLES if re.search(rf"Seq Scan on {table}\b", plan)]
            self.seen += 1
            if whole:
                self.whole[sql] = whole
        return execute(sql, params, many, context)


@pytest.fixture
def plans(db: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Plans:
    # As small beside this table as the real ones are beside millions.
    for name in ("WINDOW", "TEXT_WINDOW", "EACH_WAITING"):
        monkeypatch.setattr(job_changelist, name, 100)
    monkeypatch.setattr(stats, "WAITING_SAMPLE", 100)
    with connection.cursor() as cursor:
        cursor.execute(fill(getattr(request, "param", "as it is")))
    return Plans()


@pytest.mark.spec("S179", "D90", "D44")
def test_no_list_of_jobs_reads_a_whole_table(plans: Plans) -> None:
    with connection.execute_wrapper(plans):
        for state in TABS:
            for given in FILTERS:
                page = job_changelist.fetch(Filters(state=state, **given))
                if page.next:
                    job_changelist.fetch(Filters(state=state, **given), after=page.next)
    assert plans.whole == {}
    assert plans.seen > len(TABS) * len(FILTERS)


@pytest.mark.spec("S179", "D90")
def test_nor_does_the_dashboard(plans: Plans) -> None:
    with connection.execute_wrapper(plans):
        now = stats.figures(limit=100).now
        stats.queues(limit=100)
        for ask in (stats.running, stats.retrying, stats.dead, stats.tasks):
            ask()
        stats.queue_names()
        stats.workers(now, stats.leader())
        stats.last_hour(now)
        stats.last_day(now)
    assert plans.whole == {}
    assert plans.seen >= 10


@pytest.mark.spec("S179")
@pytest.mark.parametrize("plans", BELIEFS, indirect=True)
def test_the_tasks_and_one_task_s_jobs_are_found_whenever_the_table_was_analysed(
    plans: Plans,
) -> None:
    """An autovacuum that last looked while much ran made each of them read the whole table."""
    with connection.execute_wrapper(plans):
        assert stats.tasks() == ["x.y"]
        assert len(job_changelist.fetch(Filters(task="x.y")).jobs) == job_changelist.PAGE
    assert plans.whole == {}
    assert plans.seen >= 2
