"""The worker's command line: what it understands, and what it refuses before it starts."""

import gc
import signal

import pytest
from django.core.exceptions import ImproperlyConfigured

from jobqueue.command_line import BadArgumentsError, Options, check, parse_queues
from jobqueue.launch import launch
from jobqueue.worker.process import signals as process_signals
from tests.setup_tasks import OPEN, tasks


@pytest.mark.spec("S55")
@pytest.mark.parametrize(
    ("text", "queues"),
    [
        (None, {"default": 1, "imports": 1, "mail": 1}),
        ("mail", {"mail": 1}),
        ("mail:3,default", {"mail": 3, "default": 1}),
        ("*", {"*": 1}),
        ("*,-mail", {"*": 1, "-mail": 0}),
        ("-mail, *:2, default:9", {"-mail": 0, "*": 2, "default": 9}),
        (" mail , default:2 ", {"mail": 1, "default": 2}),
        ("Mail_x.y-z:1000", {"Mail_x.y-z": 1000}),
    ],
)
def test_queues_are_names_with_weights_in_order(text, queues):
    assert list(parse_queues(text).items()) == list(queues.items())


@pytest.mark.spec("S55", "S232", "D107")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a queue name: write 1 to 63 of the letters"),
        (",", "'' is not a queue name"),
        ("mail,", "'' is not a queue name"),
        ("*mail", r"'\*mail' is not a queue name"),
        ("-mail", r"'-mail' leaves a queue out of nothing: write '\*,-mail'"),
        ("mail,-imports", r"'-imports' leaves a queue out of nothing"),
        ("*,-", "'-' leaves out no queue: write '-' and a name"),
        ("*,-mail:2", "'-mail:2' leaves out no queue: write '-' and a name without a weight"),
        ("*,-mail,-mail", "'-mail' is named twice"),
        ("*,*", r"'\*' is named twice"),
        ("*,mail,-mail", "'mail' is named and left out"),
        ("a b", "'a b' is not a queue name"),
        ("ä", "'ä' is not a queue name"),
        ("1st", "'1st' is not a queue name"),
        ("x'; DROP TABLE y", "is not a queue name"),
        ("q" * 64, "is not a queue name"),
        ("a,a", "'a' is named twice: name each queue once"),
        ("a,b,a:2", "'a' is named twice"),
        ("a:", "the weight of 'a' is '': write a whole number from 1 to 1000"),
        ("a:0", "the weight of 'a' is '0'"),
        ("a:1001", "the weight of 'a' is '1001'"),
        ("a:-1", "the weight of 'a' is '-1'"),
        ("a:1.5", "the weight of 'a' is '1.5'"),
        ("a:²", "the weight of 'a' is '²'"),
        ("a:1:2", "the weight of 'a' is '1:2'"),
    ],
)
def test_a_list_of_queues_that_is_none_is_refused_with_what_to_write(text, sentence):
    with pytest.raises(BadArgumentsError, match=f"^--queues: .*{sentence}"):
        parse_queues(text)


@pytest.mark.spec("S55")
def test_a_queue_that_no_task_can_use_is_refused_with_the_known_ones():
    with pytest.raises(
        BadArgumentsError,
        match="'emails' is in no QUEUES of TASKS, so no job can be in it: "
        "write some of default, imports, mail",
    ):
        check(Options(queues="mail,emails"))
    with pytest.raises(BadArgumentsError, match="'emails' is in no QUEUES of TASKS"):
        check(Options(queues="*,-emails"))
    check(Options(queues="*,-mail"))


def test_any_queue_may_be_served_where_any_may_be_enqueued(settings):
    settings.TASKS = tasks(OPEN)
    check(Options(queues="whatever"))
    assert parse_queues(None) == {"default": 1}


@pytest.mark.spec("S232", "S197f")
@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("concurrency", 0, "--concurrency: 0 will not do: write a whole number from 1 to 10000"),
        ("concurrency", 10_001, "--concurrency: 10001 will not do"),
        ("processes", 0, "--processes: 0 is out of range"),
        ("max_runtime", -1.0, "--max-runtime: -1.0 is out of range"),
        ("max_runtime", float("nan"), "--max-runtime: nan is out of range"),
        ("max_runtime", float("inf"), "--max-runtime: inf is out of range"),
        ("max_jobs", 0, "--max-jobs: 0 is out of range"),
        ("max_memory", 0, "--max-memory: 0 is out of range"),
        ("probe", "here", "--probe: 'here' will not do: write an address such"),
        ("probe", "", "--probe: '' will not do"),
    ],
)
def test_an_option_out_of_range_is_refused_and_ends_with_two(option, value, sentence, capsys):
    with pytest.raises(BadArgumentsError) as error:
        check(Options(**{option: value}))
    assert str(error.value).startswith(sentence)
    assert launch(Options(**{option: value})) == 2
    assert capsys.readouterr().err == f"runworker: {error.value}\n"


def test_options_replace_their_settings(settings):
    settings.JOBQUEUE = {"CONCURRENCY": 3}
    assert check(Options()).concurrency == 3
    chosen = check(Options(concurrency=7, probe="127.0.0.1:9000"))
    assert (chosen.concurrency, chosen.probe_address) == (7, "127.0.0.1:9000")


@pytest.mark.spec("S232")
def test_every_fault_of_the_settings_is_a_line_and_ends_with_one(settings, capsys):
    settings.JOBQUEUE = {"CONCURENCY": 1, "NOTIFY": "yes"}
    assert launch(Options()) == 1
    assert capsys.readouterr().err == (
        "runworker: JOBQUEUE['CONCURENCY']: is not a setting of jobqueue. "
        "Did you mean 'CONCURRENCY'?\n"
        "runworker: JOBQUEUE['NOTIFY']: is 'yes'. Write True or False.\n"
    )


@pytest.mark.spec("S232")
def test_bad_queues_in_the_settings_are_reported_as_the_system_checks_do(settings, capsys):
    settings.TASKS = tasks(["good", "not good"])
    assert launch(Options()) == 1
    assert capsys.readouterr().err.startswith(
        "runworker: TASKS['default']['QUEUES'] holds 'not good', not a queue name. Write "
    )


@pytest.mark.spec("S55", "S232")
def test_a_site_whose_tasks_go_elsewhere_has_nothing_for_a_worker(settings, capsys):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    assert launch(Options()) == 1
    assert capsys.readouterr().err == (
        "runworker: TASKS: no entry has the BACKEND 'jobqueue.backend.JobQueueBackend', so there "
        "is nothing to run: write one.\n"
    )


@pytest.mark.spec("S232")
def test_a_backend_that_cannot_be_imported_is_one_line(settings):
    settings.TASKS = {"default": {"BACKEND": "no.such.Backend"}}
    with pytest.raises(ImproperlyConfigured, match=r"^TASKS: Could not find backend"):
        check(Options())


def test_what_is_loaded_before_a_run_is_kept_from_the_collector_until_its_end(monkeypatch):
    before, within = gc.get_freeze_count(), []
    monkeypatch.setattr(
        "jobqueue.launch.Worker.run", lambda worker: within.append(gc.get_freeze_count()) or 3
    )
    monkeypatch.setattr("jobqueue.launch._bound_the_exit", lambda deadline: None)
    assert launch(Options()) == 3
    assert within[0] > before == gc.get_freeze_count()


@pytest.mark.spec("S131")
def test_a_process_that_starts_and_ends_ignores_what_it_will_listen_to():
    late = {signal.SIGHUP: signal.SIG_DFL, signal.SIGUSR2: len}  # somebody's own stays
    former = {number: signal.signal(number, handler) for number, handler in late.items()}
    try:
        with process_signals.deaf(supervised=False):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGUSR2) is len
        assert {number: signal.getsignal(number) for number in late} == late
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
