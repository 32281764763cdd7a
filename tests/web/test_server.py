"""A server that cannot hold the queue is named at every door, in the same words."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from jobqueue.server_rules import fault_of
from tests.databases import manage, url_of

DOORS = (["migrate"], ["check", "--database", "default"], ["jobqueue", "doctor"], ["runworker"])


@pytest.fixture
def url(request: pytest.FixtureRequest):
    """An empty database with this encoding."""
    name = f"scratch_{uuid4().hex[:12]}"
    with psycopg.connect(url_of("postgres"), autocommit=True) as server:
        made = (
            "CREATE DATABASE {} ENCODING {} LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C' "
            "TEMPLATE template0"
        )
        server.execute(sql.SQL(made).format(sql.Identifier(name), request.param))
        try:
            yield url_of(name)
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("url", ["UTF8"], indirect=True)
@pytest.mark.parametrize("door", DOORS, ids="-".join)
def test_a_server_that_is_too_old_is_named(url: str, door: list[str]) -> None:
    code, out, err = manage(*door, url=url, DJANGO_SETTINGS_MODULE="tests.web.old_server_settings")
    assert code == 1
    assert "PostgreSQL 99 or later is required (found " in out + err
    assert "see pg_upgrade" in out + err
    assert "Traceback" not in out + err


@pytest.mark.spec("D127")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("url", ["LATIN1", "SQL_ASCII"], indirect=True)
@pytest.mark.parametrize("door", DOORS, ids="-".join)
def test_an_encoding_that_cannot_hold_every_text_is_named(url: str, door: list[str]) -> None:
    code, out, err = manage(*door, url=url)
    assert code == 1
    assert "jobqueue needs UTF8" in out + err
    assert "ENCODING 'UTF8' TEMPLATE template0" in out + err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("version", "encoding", "code"),
    [
        (140_022, "UTF8", "E009"),
        (150_000, "UTF8", None),
        (180_004, "UTF8", None),
        (150_000, "LATIN1", "E010"),
        (150_000, None, None),
    ],
)
def test_what_a_server_must_be(version: int, encoding: str | None, code: str | None) -> None:
    fault = fault_of(version, encoding, oldest=15)
    assert (fault and fault.code) == code
