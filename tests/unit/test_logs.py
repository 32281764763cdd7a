"""Events: through the standard library's logging, or our own output; logging breaks no work."""

import io
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import structlog

from jobqueue import log_delivery, log_output, logs
from tests.events import captured

SetUp = Callable[..., io.StringIO]
log = logs.get_logger()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process where nobody has set up any logging: pytest's own handlers stand aside."""
    before, level, handlers = logs.stdlib.propagate, logs.stdlib.level, [*logs.stdlib.handlers]
    logs.stdlib.propagate = False
    monkeypatch.setattr(logs, "_output", None)
    yield
    logs.stdlib.propagate, logs.stdlib.handlers[:] = before, handlers
    logs.stdlib.setLevel(level)


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> SetUp:
    """Sets the logs up for another stderr, which it returns; to be called by the test itself,
    since pytest puts its own stderr in place before that."""

    def set_up(
        stream: io.StringIO, style: str | None = None, *, debug: bool = False
    ) -> io.StringIO:
        monkeypatch.setattr(sys, "stderr", stream)
        own = [handler for handler in logs.stdlib.handlers if isinstance(handler, Kept)]
        logs.stdlib.handlers[:] = own  # pytest has added its own
        monkeypatch.setattr(logs.stdlib, "propagate", False)
        logs.set_up(style, debug=debug)
        return stream

    return set_up


class Kept(logging.Handler):
    """A project's handler: keeps the records, and where they came to it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.threads: list[str] = []
        self.fields: list[dict[str, object]] = []
        self.go = threading.Event()
        self.go.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.go.wait(20)
        self.records.append(record)
        self.threads.append(threading.current_thread().name)
        self.fields.append(structlog.contextvars.get_contextvars())


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logs.stdlib.addHandler(handler)
    logs.stdlib.setLevel(logging.INFO)
    yield handler
    handler.go.set()
    logs.stdlib.removeHandler(handler)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.spec("S217")
def test_a_pipe_gets_json_with_event_level_time_and_context(set_up: SetUp) -> None:
    piped = set_up(io.StringIO())
    with structlog.contextvars.bound_contextvars(job=7, queue="mail"):
        log.info("job_succeeded", attempt=2, name="x")
    [line] = lines(piped)
    assert line.pop("timestamp")
    assert line == {
        "event": "job_succeeded",
        "level": "info",
        "job": 7,
        "queue": "mail",
        "attempt": 2,
        "name": "x",
    }


@pytest.mark.parametrize(
    ("stream", "style", "is_json"),
    [
        (Terminal, None, False),
        (Terminal, log_output.JSON, True),
        (io.StringIO, None, True),
        (io.StringIO, log_output.TEXT, False),
    ],
)
def test_text_for_a_terminal_json_elsewhere_unless_chosen(
    set_up: SetUp, stream: type[io.StringIO], style: str | None, is_json: bool
) -> None:
    written = set_up(stream(), style)
    log.warning("lease_lost", job=7)
    assert "lease_lost" in written.getvalue()
    assert written.getvalue().startswith("{") is is_json


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
    log.info("job_dead", value=value)
    assert "job_dead" in stream.getvalue()
    if kind is io.StringIO:
        assert len(stream.getvalue().splitlines()) == 1


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


@pytest.mark.spec("S219")
@pytest.mark.parametrize("stream", [Broken(), None])
def test_a_broken_stderr_is_nobody_s_problem(set_up: SetUp, stream: io.StringIO | None) -> None:
    set_up(stream)
    log.info("job_dead")


def test_an_exception_stands_in_its_own_field(set_up: SetUp) -> None:
    piped = set_up(io.StringIO())
    try:
        raise ValueError("wrong")
    except ValueError:
        log.exception("job_dead")
    [line] = lines(piped)
    assert str(line["exception"]).endswith("ValueError: wrong")


def test_debug_lines_are_left_out_unless_asked_for(set_up: SetUp) -> None:
    quiet = set_up(io.StringIO())
    log.debug("job_claimed")
    assert quiet.getvalue() == ""
    talking = set_up(io.StringIO(), debug=True)
    log.debug("job_claimed")
    assert [line["event"] for line in lines(talking)] == ["job_claimed"]


def test_lines_of_one_moment_are_written_together(set_up: SetUp) -> None:
    stream = set_up(io.StringIO())
    with logs.together():
        log.info("one")
        log.info("two")
        assert stream.getvalue() == ""
    assert [line["event"] for line in lines(stream)] == ["one", "two"]


# The standard library's logging.


def test_a_project_s_handler_gets_the_fields_as_extra_and_no_output_is_added(
    set_up: SetUp, kept: Kept
) -> None:
    stream = set_up(io.StringIO())
    log.info("worker_started", job=7, name="a", args=[1], module="m", message="x")
    [record] = kept.records
    assert stream.getvalue() == ""
    assert (record.name, record.msg, record.levelno) == ("jobqueue", "worker_started", 20)
    facts = vars(record)
    assert (facts["job"], facts["name_"], facts["args_"]) == (7, "a", [1])
    assert (facts["module_"], facts["message_"]) == ("m", "x")
    assert (record.filename, record.funcName) == ("test_logs.py", sys._getframe().f_code.co_name)


def test_caplog_sees_an_event_with_its_exception(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("wrong")
    with caplog.at_level(logging.INFO, "jobqueue"):
        log.error("job_dead", exc_info=error, job=1)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert "ValueError: wrong" in caplog.text


def test_a_level_that_the_project_has_set_holds(kept: Kept) -> None:
    logs.stdlib.setLevel(logging.ERROR)
    log.warning("lease_lost")
    log.error("job_dead")
    assert [record.msg for record in kept.records] == ["job_dead"]


def test_a_project_s_factory_and_a_filter_that_raises_do_no_harm(kept: Kept) -> None:
    def factory(*args: object, **facts: object) -> logging.LogRecord:
        record = before(*args, **facts)
        record.job = "the project's"
        return record

    def broken(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(factory)
    try:
        log.info("job_succeeded", job=7)
        assert vars(kept.records[0])["job"] == 7
        logs.stdlib.addFilter(broken)
        log.info("job_succeeded", job=8)
    finally:
        logging.setLogRecordFactory(before)
        logs.stdlib.removeFilter(broken)
    assert len(kept.records) == 1


def test_our_formatter_appends_the_fields_to_the_project_s_own_format() -> None:
    record = logs.stdlib.makeRecord("jobqueue", 20, "", 0, "job_dead", (), None)
    record.event_fields = {"job": 7, "value": Unprintable()}
    shown = logs.Formatter("{levelname} {message}", style="{").format(record)
    assert shown == "INFO job_dead job=7 value=<Unprintable>"
    other = logging.makeLogRecord({"msg": "hello", "levelname": "INFO"})
    assert logs.Formatter("{levelname} {message}", style="{").format(other) == "INFO hello"


def test_the_project_s_structlog_is_neither_read_nor_changed(set_up: SetUp) -> None:
    def refuses(*args: object) -> None:
        raise AssertionError("it was read")

    before, stream = structlog.get_config(), set_up(io.StringIO())
    structlog.configure(processors=[refuses], wrapper_class=refuses, context_class=refuses)  # type: ignore[arg-type]
    try:
        logs.get_logger().bind(supervisor="s").info("job_dead")
        assert structlog.get_config()["processors"] == [refuses]
    finally:
        structlog.configure(**before)
    assert [(line["event"], line["supervisor"]) for line in lines(stream)] == [("job_dead", "s")]


def test_handlers_added_later_receive_events_alongside_our_own_output(set_up: SetUp) -> None:
    stream, handler = set_up(io.StringIO()), Kept()
    logs.stdlib.addHandler(handler)
    try:
        log.info("job_dead")
    finally:
        logs.stdlib.removeHandler(handler)
    assert len(handler.records) == len(lines(stream)) == 1


# Where a thread delivers.


def test_records_bear_the_moment_thread_and_context_of_the_event(kept: Kept) -> None:
    kept.go.clear()
    with logs.delivering(lambda: 20):
        with structlog.contextvars.bound_contextvars(job=7):
            log.info("first")
        log.info("second")
        moment = time.time()
        kept.go.set()
    assert [record.msg for record in kept.records] == ["first", "second"]
    assert kept.threads == ["logs", "logs"]
    assert kept.fields == [{"job": 7}, {}]
    assert all(record.created <= moment for record in kept.records)
    assert {record.threadName for record in kept.records} == {threading.current_thread().name}


def test_a_handler_that_hangs_holds_up_nobody_and_drops_are_counted_and_logged(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_delivery, "MOST_WAITING", 5)
    kept.go.clear()
    with logs.delivering(lambda: 20) as delivery:
        for number in range(50):
            log.info("job_succeeded", number=number)
        assert delivery.dropped >= 44
        assert not logs.flush(0.05)
        kept.go.set()
    dropped = [record for record in kept.records if record.msg == "log_records_dropped"]
    assert sum(vars(record)["number"] for record in dropped) == delivery.dropped
    assert not delivery.is_stuck


def test_a_handler_that_hangs_to_the_end_is_left_with_its_records_counted(kept: Kept) -> None:
    kept.go.clear()
    with logs.delivering(lambda: 0.05) as delivery:
        for _ in range(3):
            log.info("job_succeeded")
    assert delivery.is_stuck
    dropped = delivery.dropped
    assert dropped >= 2
    log.info("outlives_the_worker")  # a thread that did so must not meet the handler either
    assert delivery.dropped == dropped + 1
    with logs.delivering(lambda: 0.05) as another:
        assert another is not delivery
    kept.go.set()
    assert delivery._thread is not None
    delivery._thread.join(10)  # what it still says belongs to this test
    assert not delivery._thread.is_alive()
    log.info("heard")
    late = [record.msg for record in kept.records]
    assert late == ["job_succeeded", "log_records_dropped", "heard"]
    assert vars(kept.records[1])["number"] == dropped + 1


def test_a_stuck_handler_that_comes_back_is_spoken_to_directly_again(kept: Kept) -> None:
    kept.go.clear()
    with logs.delivering(lambda: 0.05) as delivery:
        log.info("job_succeeded")
    log.info("dropped")
    kept.go.set()
    assert delivery._thread is not None
    delivery._thread.join(10)
    log.info("heard")
    late = [record.msg for record in kept.records]
    assert late == ["job_succeeded", "log_records_dropped", "heard"]
    assert kept.threads[-1] == threading.current_thread().name


def test_the_number_of_drops_is_logged_once_there_is_room_for_it(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that makes events itself fills the queue again just before the notice."""
    monkeypatch.setattr(log_delivery, "MOST_WAITING", 10)
    emit, filled = kept.emit, []

    def fills(record: logging.LogRecord) -> None:
        emit(record)
        if record.msg == "first":
            filled.append(logs._delivery)
            for number in range(25):
                log.info("more", number=number)

    monkeypatch.setattr(kept, "emit", fills)
    with logs.delivering(lambda: 20) as delivery:
        log.info("first")
        assert logs.flush(20)
    assert delivery.dropped == 15
    logged = [record for record in kept.records if record.msg == "log_records_dropped"]
    assert [vars(record)["number"] for record in logged] == [15]
    place = [record.msg for record in kept.records].index("log_records_dropped")
    assert place > 5  # not while the queue was full


def test_a_handler_that_leaves_ends_no_delivery(kept: Kept) -> None:
    def leaves(record: logging.LogRecord) -> bool:
        raise SystemExit

    logs.stdlib.addFilter(leaves)
    try:
        with logs.delivering(lambda: 20):
            log.info("lost")
            assert logs.flush(20)
            logs.stdlib.removeFilter(leaves)
            log.info("heard")
    finally:
        logs.stdlib.removeFilter(leaves)
    assert [record.msg for record in kept.records] == ["heard"]


def test_two_workers_of_a_process_share_the_thread(kept: Kept) -> None:
    with logs.delivering(lambda: 20) as first:
        with logs.delivering(lambda: 20) as second:
            log.info("one")
        log.info("two")
    assert first is second
    assert [record.msg for record in kept.records] == ["one", "two"]
    assert kept.threads == ["logs", "logs"]


def test_captured_events_are_seen_at_once() -> None:
    with captured() as events:
        log.info("one", job=1)
        log.debug("two")
    assert events == [{"event": "one", "job": 1, "log_level": "info"}]
