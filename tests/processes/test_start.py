"""A worker that cannot start says why in one line; one that can only wait, waits."""

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.databases import manage, new_database, start, url_of
from tests.documents import blocks

NOWHERE = "postgresql://me:hush@127.0.0.1:1/x"
RUN = ("runworker", "--until-idle")
ENQUEUE = "from tests.sample_tasks import send; send.enqueue(1)"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with new_database() as name:
        assert manage("migrate", url=url_of(name))[0] == 0
        yield name


@pytest.mark.spec("S232")
def test_a_database_that_is_no_postgresql_is_one_line() -> None:
    code, _, err = manage(*RUN, url="sqlite:///x.db")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "needs PostgreSQL" in err


@pytest.mark.spec("S18", "S47", "D102")
def test_missing_tables_are_one_line_that_names_the_command() -> None:
    with new_database() as name:
        assert manage(*RUN, url=url_of(name)) == (
            1,
            "",
            "runworker: The tables of jobqueue are missing in this database: "
            "run `manage.py migrate`.\n",
        )


@pytest.mark.spec("S18")
def test_older_tables_are_one_line_that_names_the_command() -> None:
    with new_database() as name:
        assert manage("migrate", "jobqueue", "0001", url=url_of(name))[0] == 0
        assert manage(*RUN, url=url_of(name)) == (
            1,
            "",
            "runworker: The tables of jobqueue are older than this code: "
            "run `manage.py migrate`.\n",
        )


def test_a_database_that_is_not_there_is_one_line() -> None:
    code, _, err = manage(*RUN, url=url_of("no_such_database"))
    assert code == 1
    assert len(err.splitlines()) == 1
    assert err.startswith("runworker: The database cannot be used: ")
    assert 'database "no_such_database" does not exist' in err


@pytest.mark.spec("S47")
def test_a_server_that_is_away_is_waited_for_with_one_line() -> None:
    process = start("runworker", url=NOWHERE)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert json.loads(line)["event"] == "database_unreachable"
        assert "hush" not in line
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, rest
    assert "database_unreachable" not in rest
    assert all(line.startswith("{") for line in rest.splitlines()), rest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--queues", ""], "runworker: --queues: '' is not a queue name"),
        (["--queues", "nosuch"], "runworker: --queues: 'nosuch' is in no QUEUES of TASKS"),
        (["--concurrency", "many"], "error: argument --concurrency: invalid int value: 'many'"),
        (["--nosuch"], "error: unrecognized arguments: --nosuch"),
    ],
)
@pytest.mark.spec("S153", "S229")
def test_bad_arguments_end_with_two_before_anything_starts(
    arguments: list[str], sentence: str
) -> None:
    code, _, err = manage("runworker", *arguments, url=NOWHERE)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


PASSWORD = "hush"  # where the tests' server asks for one


def documented_grants(role: str) -> list[str]:
    """The statements of docs/settings.md for one of its two roles."""
    (block,) = blocks("docs/settings.md", "sql")
    plain = re.sub(r"--[^\n]*", "", block)
    found = [each.strip() for each in plain.split(";") if each.strip().endswith(f"TO {role}")]
    assert len(found) >= 4
    return found


@contextlib.contextmanager
def role_with_grants(database: str, role: str) -> Iterator[str]:
    """A role with the documented rights and no other; its name."""
    name = f"{role}_{os.getpid()}"
    with psycopg.connect(url_of(database), autocommit=True) as owner:
        identifier = sql.Identifier(name)
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(identifier, PASSWORD))
        for statement in documented_grants(role):
            owner.execute(statement.replace(f"TO {role}", f"TO {name}"))  # type: ignore[arg-type]
        yield name
        owner.execute(sql.SQL("DROP OWNED BY {}").format(identifier))
        owner.execute(sql.SQL("DROP ROLE {}").format(identifier))


@pytest.fixture
def runner(database: str) -> Iterator[str]:
    with role_with_grants(database, "worker_role") as name:
        yield name


@pytest.fixture
def web(database: str) -> Iterator[str]:
    with role_with_grants(database, "web_role") as name:
        yield name


@pytest.mark.spec("D113")
def test_the_webs_role_steers_everything_and_cannot_rewrite_history(
    database: str, web: str, runner: str
) -> None:
    url = url_of(database, f"{web}:{PASSWORD}")
    enqueue = (
        "import jobqueue; from tests.sample_tasks import send; from jobqueue.models import Job;"
        "send.enqueue(); print(jobqueue.enqueue_many([(send,)] * 3)[0])"
    )
    code, out, err = manage("shell", "-v", "0", "-c", enqueue, url=url)
    assert code == 0, err
    first = out.strip()
    for words, wanted in (
        (["status"], 0),
        (["doctor", "--json"], 3),  # there is something to say: no worker is running
        (["pause", "default"], 0),
        (["resume", "default"], 0),
        (["cancel", first], 0),
        (["retry", first], 0),
        (["cancel", "--all"], 0),
        (["prune", "--older-than", "0", "--state", "CANCELLED"], 0),
    ):
        code, _, err = manage("jobqueue", *words, url=url)
        assert code == wanted, (words, err)
        assert "denied" not in err
    with psycopg.connect(url) as history:
        assert history.execute("SELECT count(*) FROM jobqueue_jobevent").fetchone() != (0,)
        for forbidden in (
            "UPDATE jobqueue_jobevent SET actor = 'x'",
            "DELETE FROM jobqueue_jobevent",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), history.transaction():
                history.execute(forbidden)  # type: ignore[arg-type]
    code, _, err = manage(*RUN, url=url_of(database, f"{runner}:{PASSWORD}"))
    assert (code, "denied" in err) == (0, False), err


@pytest.mark.spec("S18", "D113")
def test_the_documented_rights_are_enough_to_enqueue_and_to_run(database: str, runner: str) -> None:
    with psycopg.connect(url_of(database), autocommit=True) as owner:
        owner.execute("TRUNCATE jobqueue_job")
    url = url_of(database, f"{runner}:{PASSWORD}")
    code, _, err = manage("shell", "-v", "0", "-c", ENQUEUE, url=url)
    assert code == 0, err
    bulk = "import jobqueue; from tests.sample_tasks import send; jobqueue.enqueue_many([(send,)])"
    code, _, err = manage("shell", "-v", "0", "-c", bulk, url=url)
    assert code == 0, err
    code, _, err = manage(*RUN, url=url)
    assert (code, "denied" in err) == (0, False), err
    with psycopg.connect(url_of(database)) as owner:
        states = owner.execute("SELECT DISTINCT state FROM jobqueue_job").fetchall()
    assert states == [("SUCCEEDED",)]


@pytest.mark.spec("S47", "D113")
@pytest.mark.parametrize("table", ["job", "minute"])
def test_a_missing_right_is_one_line_that_names_it(database: str, runner: str, table: str) -> None:
    with psycopg.connect(url_of(database), autocommit=True) as owner:
        owner.execute(
            sql.SQL("REVOKE UPDATE, DELETE ON {} FROM {}").format(
                sql.Identifier(f"jobqueue_{table}"), sql.Identifier(runner)
            )
        )
    assert manage(*RUN, url=url_of(database, f"{runner}:{PASSWORD}")) == (
        1,
        "",
        "runworker: The database user lacks rights that jobqueue needs: "
        f"UPDATE, DELETE on jobqueue_{table}.\n",
    )


BORDER_CODE = """
import jobqueue
from tests.sample_tasks import fail, send
print([send.enqueue(1).id, fail.using(max_attempts=2, backoff=0).enqueue().id])
print(jobqueue.enqueue_many([(send,), (send, [2])]))
"""


@pytest.mark.spec("D75")
@pytest.mark.parametrize("border", [pytest.param(2**31, marks=pytest.mark.long), 2**53])
@pytest.mark.timeout(120)
def test_ids_past_the_borders_of_smaller_numbers_run_fail_and_are_retried(
    database: str, border: int
) -> None:
    url = url_of(database)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("TRUNCATE jobqueue_job, jobqueue_attempt")
        owner.execute("SELECT setval('jobqueue_job_id_seq', %s)", [border - 2])
        assert manage("shell", "-v", "0", "-c", BORDER_CODE, url=url)[0] == 0
        code, _, err = manage(*RUN, url=url)
        assert code == 3, err  # one job has died
        found = owner.execute("SELECT id, state, attempts FROM jobqueue_job ORDER BY id").fetchall()
        assert found == [
            (border - 1, "SUCCEEDED", 1),
            (border, "DEAD", 2),
            (border + 1, "SUCCEEDED", 1),
            (border + 2, "SUCCEEDED", 1),
        ]
        for words in (["retry", str(border)], ["cancel", str(border)]):
            code, out, err = manage("jobqueue", *words, url=url)
            assert (code, "1 changed" in out) == (0, True), err
        history = (
            "SELECT job_id, number, outcome FROM jobqueue_attempt WHERE job_id = %s ORDER BY 2"
        )
        assert owner.execute(history, [border]).fetchall() == [
            (border, 1, "FAILED"),
            (border, 2, "FAILED"),
        ]
        state = "SELECT state FROM jobqueue_job WHERE id = %s"
        assert owner.execute(state, [border]).fetchall() == [("CANCELLED",)]
