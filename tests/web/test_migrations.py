"""Migrations: forward, back, three at once, and nothing left to make."""

import os
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from django.contrib.postgres.operations import (
    AddConstraintNotValid,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
)
from django.db import migrations
from django.db.migrations.loader import MigrationLoader

from jobqueue.migrations._locks import LockTimeout
from tests.databases import ROOT, manage, new_database, start, url_of

pytestmark = pytest.mark.spec("S18")
TABLES = "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'S') AND relname ~ '^jobqueue'"
INVALID = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
SCHEMA = """
SELECT table_name, column_name, data_type, column_default FROM information_schema.columns
WHERE table_name LIKE 'jobqueue%' ORDER BY 1, 2
"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'jobqueue%' ORDER BY 1"


@pytest.fixture
def url() -> Iterator[str]:
    with new_database() as name:
        yield url_of(name)


def ask(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.spec("D119")
@pytest.mark.parametrize("language", ["en", "de", "fr"])
@pytest.mark.parametrize("key", ["django.db.models.BigAutoField", "django.db.models.AutoField"])
def test_nothing_is_left_to_make(key: str, language: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "manage.py", "makemigrations", "jobqueue", "--check"],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.web.other_settings",
            "AUTO_FIELD": key,
            "LANGUAGE": language,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (
        0,
        "No changes detected in app 'jobqueue'",
    )


@pytest.mark.timeout(120)
def test_to_zero_and_back_leaves_the_same_tables(url: str) -> None:
    assert manage("migrate", url=url)[0] == 0
    before = (ask(url, SCHEMA), ask(url, INDEXES))
    assert before[0]
    code, _, err = manage("migrate", "jobqueue", "zero", url=url)
    assert code == 0, err
    assert ask(url, TABLES) == [(0,)]
    assert manage("migrate", url=url)[0] == 0
    assert (ask(url, SCHEMA), ask(url, INDEXES)) == before


@pytest.mark.timeout(120)
def test_three_migrates_at_once_do_no_damage(url: str) -> None:
    processes = [start("migrate", url=url) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=90)  # Django has no lock: the slower ones may fail
    code, _, err = manage("migrate", url=url)
    assert code == 0, err
    assert ask(url, INVALID) == [(0,)]
    assert manage("migrate", "--check", url=url)[0] == 0


# What neither rewrites nor scans a table of millions of rows while it keeps the workers out.
# Storage settings are statements of their own; the test below shows that they hold up nobody.
UNLOCKED = (
    migrations.AddField,
    migrations.AlterModelOptions,
    migrations.CreateModel,
    AddConstraintNotValid,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
)
STATEMENTS = {"0002_storage"}


def later_operations() -> list[tuple[str, migrations.Migration, object]]:
    """Every operation on tables that may be full already: those behind the first migration."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    return [
        (name, migration, operation)
        for (app, name), migration in loader.disk_migrations.items()
        if app == "jobqueue" and not migration.initial
        for operation in migration.operations
    ]


@pytest.mark.spec("D101")
def test_every_migration_after_the_first_is_written_for_a_table_in_use() -> None:
    found = later_operations()
    assert {name for name, _, _ in found} >= STATEMENTS
    for name, migration, operation in found:
        if isinstance(operation, LockTimeout):
            assert operation is migration.operations[0]
            continue
        if isinstance(operation, migrations.AddField | AddConstraintNotValid):
            assert isinstance(migration.operations[0], LockTimeout), f"{name}: begins with no bound"
        if isinstance(operation, migrations.RunSQL):
            assert name in STATEMENTS, f"{name}: show in a test of its own that it locks nobody out"
            continue
        assert isinstance(operation, UNLOCKED), f"{name}: {operation} locks or rewrites its table"
        if isinstance(operation, AddIndexConcurrently | RemoveIndexConcurrently):
            # One each: an interrupted build leaves an invalid index, and the migration is repeated.
            assert not migration.atomic
            assert len(migration.operations) == 1, f"{name}: one concurrent index a migration"
        if isinstance(operation, migrations.AddField):
            field = operation.field
            assert field.null or field.has_db_default(), (
                f"{name}: {operation.name} needs db_default"
            )


@pytest.mark.spec("D101")
@pytest.mark.timeout(120)
def test_storage_settings_apply_alongside_open_transactions(url: str) -> None:
    """Sessions that have read and written, and now sit idle in their transactions."""
    assert manage("migrate", "jobqueue", "0001", url=url)[0] == 0
    with psycopg.connect(url) as session:
        session.execute("INSERT INTO jobqueue_job (task) VALUES ('x.y')")
        session.execute("SELECT FROM jobqueue_attempt, jobqueue_worker, jobqueue_leaderlease")
        code, _, err = manage("migrate", "jobqueue", "0002", url=url)
        assert code == 0, err
        session.execute("UPDATE jobqueue_job SET priority = 1")
    assert ask(url, "SELECT priority FROM jobqueue_job") == [(1,)]


@pytest.mark.spec("D101")
@pytest.mark.timeout(120)
def test_an_open_transaction_fails_a_migration_soon_and_the_next_try_succeeds(url: str) -> None:
    """Longer it must not wait: whoever comes behind its lock waits too."""
    assert manage("migrate", "jobqueue", "0004", url=url)[0] == 0
    with psycopg.connect(url) as session:
        session.execute("SELECT FROM jobqueue_job, jobqueue_worker, jobqueue_schedule")
        code, _, err = manage("migrate", "jobqueue", url=url)
        assert code == 1
        assert "lock timeout" in err
    code, _, err = manage("migrate", "jobqueue", url=url)
    assert code == 0, err
