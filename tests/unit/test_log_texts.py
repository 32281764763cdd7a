"""What leaves through the logs: no secret, and nothing that moves a cursor or begins a line."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
import structlog

from jobqueue import log_texts, logs, redact
from jobqueue.log_output import JSON, TEXT, Output
from jobqueue.payload import clean
from jobqueue.states import Outcome, State
from jobqueue.store.finish import Ending
from jobqueue.worker.outcomes.events import OutcomeEvents

SECRET = "hunter2-swordfish"
TEXT_WITH = f"could not connect: postgresql://ann:{SECRET}@db/shop, password={SECRET}"
FORGED = "x\n2026-12-01 [error] job_dead\x1b[2K\x9b1A\u202e"
log = logs.get_logger()
pytestmark = pytest.mark.spec("S228")


class Thing:
    def __str__(self) -> str:
        return TEXT_WITH


def error() -> ValueError:
    try:
        raise ValueError(TEXT_WITH)
    except ValueError as caught:
        return caught


FIELDS: dict[str, Any] = {
    "error": TEXT_WITH,
    "api_key": SECRET,
    "facts": {"password": SECRET, "more": [TEXT_WITH]},
    "pair": ("token", SECRET),
    "thing": Thing(),
    "exc_info": error(),
    "job": 7,
}


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The worker's own output in a style; returns what was written."""

    def write(style: str, event: str = "job_dead", **fields: Any) -> str:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(logs, "_output", Output(style))
        monkeypatch.setattr(logs, "_others_listen", lambda: False)
        log.error(event, **fields)
        return stream.getvalue()

    return write


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What a handler of the project gets, at every level."""
    before = logs.stdlib.level
    logs.stdlib.setLevel(logging.DEBUG)

    def made(name: str = "jobqueue") -> Kept:
        kept, logger = Kept(), logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [kept])
        monkeypatch.setattr(logger, "propagate", False)
        monkeypatch.setattr(logs, "_output", None)
        return kept

    yield made
    logs.stdlib.setLevel(before)


@pytest.mark.parametrize("style", [JSON, TEXT])
def test_a_line_of_our_own_shows_no_secret(own: Any, style: str) -> None:
    line = own(style, **FIELDS)
    assert SECRET not in line
    assert line.count("could not connect") >= 4  # error, facts, thing, traceback
    assert "test_log_texts.py" in line


def test_a_record_for_the_project_s_handlers_shows_no_secret(record: Any) -> None:
    kept = record()
    log.error("job_dead", **FIELDS)
    [made] = kept.records
    assert made.exc_info  # for an error tracker, which has its own scrubbing
    for formatter in (logs.Formatter("{message}", style="{"), logging.Formatter("%(error)s")):
        line = formatter.format(made)
        assert SECRET not in line
        assert "could not connect" in line
    plain = {**made.event_fields, "thing": ""}
    assert SECRET not in str(plain)


def test_what_a_project_has_bound_is_covered_too(record: Any) -> None:
    kept = record()
    with structlog.contextvars.bound_contextvars(session_token=SECRET, note=TEXT_WITH):
        log.error("job_dead")
    assert SECRET not in str(kept.records[0].event_fields)


def test_a_value_neither_moves_the_cursor_nor_begins_a_line(own: Any, record: Any) -> None:
    failing = ValueError(FORGED)
    line = own(TEXT, queue=FORGED, **{FORGED: 1}, more=[FORGED], exc_info=failing)
    assert "\x9b" not in line
    assert "\u202e" not in line
    assert "\x1b[2K" not in line  # the colours are our own
    assert not [one for one in line.splitlines() if one.startswith("2026-12-01 [error]")]
    as_json = own(JSON, queue=FORGED, **{FORGED: 1}, exc_info=failing)
    assert len(as_json.splitlines()) == 1
    assert json.loads(as_json)["queue"] == FORGED
    assert "\x1b" not in as_json
    kept = record()
    log.error("job_dead", queue=FORGED)
    formatted = logs.Formatter("{message}", style="{").format(kept.records[0])
    assert len(formatted.splitlines()) == 1
    assert "\x1b" not in formatted


def test_what_asyncio_logs_of_a_loop_is_covered(record: Any) -> None:
    kept = record("asyncio")
    loop = asyncio.new_event_loop()
    context = {"message": TEXT_WITH, "exception": error(), "task": Thing(), "z": 1}
    logs.handle_loop_error(loop, context)
    loop.close()
    [made] = kept.records
    line = logging.Formatter().format(made)
    assert SECRET not in line
    assert line.count("could not connect") == 3
    assert made.levelno == logging.ERROR


def test_a_cut_never_parts_a_secret_from_its_name() -> None:
    for limit in (100, 500, 4_000):
        for before in range(0, 2 * limit, 7):
            text = "x" * before + f" password={SECRET} " + "y" * (3 * limit - before)
            cut = clean(text, limit)
            assert len(cut) <= limit
            assert SECRET[-6:] not in cut, (limit, before)
    assert SECRET in clean(f"password={SECRET}", 100)  # what is not cut is stored as it is


def test_a_long_field_is_covered_before_it_is_cut() -> None:
    edge = log_texts.FIELD_LIMIT // 2
    for before in range(edge - 60, edge + 20):
        text = "x" * before + f" password={SECRET} " + "y" * log_texts.FIELD_LIMIT
        assert SECRET[-6:] not in log_texts.covered({"error": text})["error"]


def test_the_line_of_a_failed_attempt_is_covered_before_it_is_cut(record: Any) -> None:
    claim = SimpleNamespace(id=1, task="a.b", queue="q", attempts=0)
    signals: Any = SimpleNamespace(finished=lambda *args: None)
    for before in range(400, 500, 3):
        kept = record()
        message = "x" * before + f" postgresql://ann:{SECRET}@db/shop"
        ending = cast(Ending, SimpleNamespace(
            outcome=Outcome.FAILED, error_class="E", error_message=message, delay=1.0,
            traceback=f"Traceback\n{TEXT_WITH}",
        ))  # fmt: skip
        inflight: Any = SimpleNamespace(claim=claim)
        OutcomeEvents(signals).written(inflight, ending, State.SCHEDULED)
        assert len(kept.records) == 2  # one with the traceback
        shown = "".join(str(one.event_fields) for one in kept.records)
        assert SECRET[:4] not in shown


def test_what_is_covered_stays_as_it_is_when_it_is_covered_again() -> None:
    once = redact.cover_text(TEXT_WITH)
    assert redact.cover_text(once) == once
    assert redact.cover({"password": redact.COVER}) == {"password": redact.COVER}


def test_ids_and_numbers_are_not_covered(record: Any) -> None:
    kept, worker = record(), uuid4()
    log.error("job_dead", job=4111111111111111, worker=worker, seconds=0.5, error=None)
    fields = kept.records[0].event_fields
    assert fields == {"job": 4111111111111111, "worker": worker, "seconds": 0.5, "error": None}


def test_with_wrong_settings_lines_are_covered_by_the_default_words(
    settings: Any, record: Any
) -> None:
    settings.JOBQUEUE = {"REDACT": "password"}
    kept = record()
    log.error("job_dead", error=TEXT_WITH)
    assert SECRET not in str(kept.records[0].event_fields)
