"""One line an event, whatever is in it; logging never breaks the work."""

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator

import pytest
import structlog

from jobqueue import logs

SetUp = Callable[..., io.StringIO]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetUp]:
    """Sets the logs up for another stderr, which it returns; to be called by the test itself,
    since pytest puts its own stderr in place before that."""
    before = structlog.get_config()

    def set_up(stream: io.StringIO, level: int = logging.INFO) -> io.StringIO:
        monkeypatch.setattr(sys, "stderr", stream)
        logs.configure(level, force=True)
        return stream

    yield set_up
    structlog.configure(**before)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.spec("S217")
def test_a_pipe_gets_json_with_event_level_time_and_context(set_up: SetUp) -> None:
    piped = set_up(io.StringIO())
    with structlog.contextvars.bound_contextvars(job=7, queue="mail"):
        structlog.get_logger("jobqueue").info("job_succeeded", attempt=2)
    [line] = lines(piped)
    assert line.pop("timestamp")
    assert line == {
        "event": "job_succeeded",
        "level": "info",
        "job": 7,
        "queue": "mail",
        "attempt": 2,
    }


def test_a_terminal_gets_a_readable_line(set_up: SetUp) -> None:
    terminal = set_up(Terminal())
    structlog.get_logger("jobqueue").warning("lease_lost", job=7)
    assert "lease_lost" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


ENDLESS: dict[str, object] = {}
ENDLESS["self"] = ENDLESS
VALUES = [Unprintable(), ENDLESS, float("nan"), "a\nb", "\ud800", b"\xff", {1: {2}}, object()]


@pytest.mark.spec("S219")
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_any_value_is_one_line_and_no_error(
    set_up: SetUp, kind: type[io.StringIO], value: object
) -> None:
    stream = set_up(kind())
    structlog.get_logger("jobqueue").info("job_dead", value=value)
    assert "job_dead" in stream.getvalue()
    if kind is io.StringIO:
        assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.spec("S219")
def test_a_failing_processor_is_skipped() -> None:
    def fails(logger: object, method: str, event: object) -> None:
        raise RuntimeError("broken")

    def drops(logger: object, method: str, event: object) -> None:
        raise structlog.DropEvent

    assert logs.contained(fails)(None, "info", {"event": "x"}) == {"event": "x"}  # type: ignore[arg-type]
    with pytest.raises(structlog.DropEvent):
        logs.contained(drops)(None, "info", {"event": "x"})  # type: ignore[arg-type]


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


@pytest.mark.spec("S219")
@pytest.mark.parametrize("stream", [Broken(), None])
def test_a_broken_stderr_is_nobody_s_problem(set_up: SetUp, stream: io.StringIO | None) -> None:
    set_up(stream)
    structlog.get_logger("jobqueue").info("job_dead")


def test_an_exception_stands_in_its_own_field(set_up: SetUp) -> None:
    piped = set_up(io.StringIO())
    try:
        raise ValueError("wrong")
    except ValueError:
        structlog.get_logger("jobqueue").exception("job_dead")
    [line] = lines(piped)
    assert str(line["exception"]).endswith("ValueError: wrong")


def test_debug_lines_are_left_out_unless_asked_for(set_up: SetUp) -> None:
    quiet = set_up(io.StringIO())
    structlog.get_logger("jobqueue").debug("job_claimed")
    assert quiet.getvalue() == ""
    talking = set_up(io.StringIO(), logging.DEBUG)
    structlog.get_logger("jobqueue").debug("job_claimed")
    assert [line["event"] for line in lines(talking)] == ["job_claimed"]


def test_a_project_s_own_setup_is_left_alone(set_up: SetUp) -> None:
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    logs.configure()
    assert len(structlog.get_config()["processors"]) == 1
