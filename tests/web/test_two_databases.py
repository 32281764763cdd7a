"""The queue's tables on a database beside the project's own, which may be another vendor's."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections

from jobqueue.routers import JobQueueRouter
from tests.databases import manage, new_database, url_of

TABLES = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'jobqueue%'"
ROUTER = "jobqueue.routers.JobQueueRouter"
STORY = """
from django.db import connections
from jobqueue.models import Job, Queue
from tests.sample_tasks import send
result = send.enqueue(3)
assert [job.pk for job in Job.objects.all()] == [int(result.id)], list(Job.objects.all())
Queue(name="mail").save()
Queue.objects.create(name="imports")
assert Queue.objects.using("jobs").count() == 2
assert Job.objects.db == "jobs"
assert Job.objects.using("default").db == "default"
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Any]:
    """Runs `manage.py` on SQLite, with the queue on an empty PostgreSQL."""
    with new_database() as name:

        def run(*arguments: str, routers: str = "") -> tuple[int, str, str]:
            return manage(
                *arguments,
                url=url_of(name),
                DJANGO_SETTINGS_MODULE="tests.web.sqlite_settings",
                SQLITE_FILE=str(tmp_path / "site.sqlite3"),
                ROUTERS=routers,
            )

        run.url, run.file = url_of(name), tmp_path / "site.sqlite3"  # type: ignore[attr-defined]
        yield run


@pytest.mark.timeout(120)
@pytest.mark.parametrize("routers", ["", ROUTER])
def test_each_database_gets_its_own_tables_and_the_models_find_theirs(
    site: Any, routers: str
) -> None:
    code, _, err = site("migrate", routers=routers)
    assert code == 0, err
    with contextlib.closing(sqlite3.connect(site.file)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        assert "contacts_contact" in tables  # an app behind this one is migrated too
        assert "auth_permission" in tables
        assert not {name for name in tables if name.startswith("jobqueue")}
        named = "SELECT count(*) FROM auth_permission WHERE codename = 'cancel_job'"
        assert connection.execute(named).fetchone() == (1,)  # beside the users whom they are given
    for door in (["runworker"], ["jobqueue", "status"], ["jobqueue", "doctor"]):
        code, out, err = site(*door, routers=routers)
        assert code == 1
        assert "--database jobs" in out + err  # `migrate` alone has just been run
    code, _, err = site("migrate", "--database", "jobs", routers=routers)
    assert code == 0, err
    with psycopg.connect(site.url) as connection:
        assert connection.execute(TABLES).fetchone()[0] >= 9
    code, _, err = site("shell", "-v", "0", "-c", STORY, routers=routers)
    assert code == 0, err
    code, _, err = site("migrate", "jobqueue", "zero", routers=routers)
    assert code == 0, err
    code, _, err = site("migrate", "jobqueue", "zero", "--database", "jobs", routers=routers)
    assert code == 0, err


@pytest.mark.spec("D40")
@pytest.mark.timeout(120)
def test_a_router_that_leads_the_models_away_is_named(site: Any) -> None:
    everything = "tests.web.sqlite_settings.Everything"
    _, _, err = site("check", routers=everything)
    assert "jobqueue.W014" in err
    assert ROUTER in err
    _, _, err = site("check", routers=f"{ROUTER},{everything}")
    assert "W014" not in err


def test_another_alias_of_the_same_database_may_make_the_tables() -> None:
    """Through a pooler, say: both share the record of what was migrated."""
    ours = connections["default"].settings_dict
    for name, may in ((ours["NAME"], True), ("elsewhere", False)):
        changes = {"NAME": name, "PORT": "1", "TEST": {**ours["TEST"], "NAME": None}}
        other = type(connections["default"])({**ours, **changes}, "pooled")
        connections["pooled"] = other
        try:
            assert JobQueueRouter().allow_migrate("pooled", "jobqueue") is may
            assert JobQueueRouter().allow_migrate("pooled", "auth") is None
        finally:
            del connections["pooled"]
