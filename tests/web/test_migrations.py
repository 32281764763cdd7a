"""Migrations: forward, back, three at once, and nothing left to make."""

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

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


def test_nothing_is_left_to_make() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "manage.py", "makemigrations", "--check", "--dry-run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "No changes detected")


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
