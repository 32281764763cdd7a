"""Tasks: their options, the functions they may be, and the way back from a stored path."""

import datetime as dt
import json
import pickle
from collections import UserDict
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from django.tasks import Task, TaskResultStatus, task, task_backends
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend

from jobqueue.conf import settings
from jobqueue.enqueueing import job_row
from jobqueue.exceptions import ArgumentsError, EnqueueError, JobCancelled
from jobqueue.payload import NotJSON
from jobqueue.tasks import UNSET, UnknownTask, check_arguments, options_of, resolve, signature_text
from jobqueue.testing import context_for
from tests.unit import odd_tasks

HOME = "tests.unit.odd_tasks"
SOON = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.mark.spec("S22")
@pytest.mark.parametrize(
    ("name", "value", "wish"),
    [
        *[("max_attempts", v, "a whole number from 1 to 100000") for v in (-1, 0, 2**31, None)],
        *[("max_attempts", v, "a whole number from 1 to 100000") for v in (1.5, True, "3")],
        *[("timeout", v, "seconds above zero, or None") for v in (0, -1, "5", True, 1e300)],
        ("timeout", float("nan"), "seconds above zero, or None"),
        *[("expires", v, "seconds above zero, or None") for v in (0, -1, float("inf"), dt.time())],
        *[("backoff", v, "seconds, or a module-level function") for v in (-1, "5", None)],
        ("backoff", lambda n: n, "seconds, or a module-level function"),
        *[("atomic", v, "True or False") for v in (1, None, "yes")],
        *[("interruptible", v, "True or False") for v in (0, None)],
    ],
)
def test_a_bad_option_is_refused_at_using_and_at_the_decorator(name, value, wish):
    with pytest.raises(InvalidTask, match=f"^{name} must be {wish}"):
        odd_tasks.good.using(**{name: value})
    with pytest.raises(InvalidTask, match=f"^{name} must be {wish}"):
        task(**{name: value})(odd_tasks.undecorated)


@pytest.mark.spec("S22", "S31")
def test_good_options_are_kept_and_unset_ones_are_left_to_the_settings():
    assert options_of(odd_tasks.chosen) == {"max_attempts": 3, "timeout": 60, "backoff": 2.5}
    assert options_of(odd_tasks.good) == {}
    changed = odd_tasks.chosen.using(timeout=None, backoff=odd_tasks.seconds, expires=60)
    assert options_of(changed) == {
        "max_attempts": 3,
        "timeout": None,
        "backoff": odd_tasks.seconds,
        "expires": 60,
    }
    assert options_of(changed.using(timeout=UNSET, expires=UNSET)).keys() == {
        "max_attempts",
        "backoff",
    }


@pytest.mark.spec("S22")
@pytest.mark.parametrize(
    "name",
    ["unique", "unique_key", "idempotency_key", "concurrency", "concurrency_key", "rate", "tenant"],
)
def test_an_option_that_is_not_built_yet_is_refused_with_a_sentence(name):
    sentence = f"The option '{name}' is not supported by this version of jobqueue: leave it out."
    with pytest.raises(InvalidTask, match=sentence):
        odd_tasks.good.using(**{name: "x"})
    with pytest.raises(InvalidTask, match=sentence):
        task(**{name: "x"})(odd_tasks.undecorated)


@pytest.mark.spec("S22")
def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(TypeError, match=r"using\(\) has no option 'time_limit'; it knows atomic, "):
        odd_tasks.good.using(time_limit=5)
    with pytest.raises(TypeError, match="time_limit"):
        task(time_limit=5)(odd_tasks.undecorated)


@pytest.mark.spec("S12", "S22", "D108")
@pytest.mark.parametrize("priority", [101, -101, 32768, 2**31, 1.5, 1.0, True, "5", None])
def test_a_priority_that_is_none_is_refused_at_the_decorator(priority):
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
        task(priority=priority)(odd_tasks.undecorated)


@pytest.mark.spec("S12", "D108")
@pytest.mark.parametrize("priority", [0, 1, -1, 100, -100])
def test_priorities_up_to_a_hundred_are_taken(priority):
    assert odd_tasks.good.using(priority=priority).priority == priority


@pytest.mark.spec("S29", "D109")
@pytest.mark.parametrize(
    ("moment", "sentence"),
    [
        (dt.datetime(2030, 1, 1), "run_after must be an aware datetime."),
        (1_900_000_000, "run_after must be a datetime, not int."),
        ("2030-01-01", "run_after must be a datetime, not str."),
        (dt.timedelta(seconds=5), "run_after must be a datetime, not timedelta."),
        (dt.datetime.max.replace(tzinfo=dt.UTC), "is too far"),
        (dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5))), "is too far"),
        (dt.datetime(9999, 1, 1, tzinfo=dt.UTC), "write a moment before the year 9999"),
    ],
)
def test_a_start_that_is_no_moment_is_refused(moment, sentence):
    with pytest.raises(InvalidTask, match=sentence):
        odd_tasks.good.using(run_after=moment)


@pytest.mark.spec("S29", "D109")
@pytest.mark.parametrize(
    "moment",
    [
        dt.datetime.min.replace(tzinfo=dt.UTC),
        dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))),
        dt.datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),  # in the gap
        dt.datetime(9998, 12, 31, tzinfo=dt.UTC),
    ],
)
def test_a_start_in_the_past_or_far_ahead_is_taken_and_can_be_stored(moment):
    row = job_row.draft(odd_tasks.good.using(run_after=moment), [1], {}, settings())
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert row["run_after"] == (moment.astimezone(dt.UTC) if moment > epoch else epoch)


@pytest.mark.spec("S13", "S29")
def test_a_deadline_beyond_what_can_be_stored_is_refused():
    last = dt.datetime(9998, 12, 1, tzinfo=dt.UTC)
    with pytest.raises(InvalidTask, match="is too far"):
        odd_tasks.good.using(run_after=last, expires=86400 * 40)
    early = dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14)))
    assert odd_tasks.good.using(run_after=early, expires=60)


@pytest.mark.spec("S13", "D28")
@pytest.mark.parametrize("name", ["", " ", "1st", "a b", "a'b", "ä", "a\n", "x" * 64, "a\0", 5])
def test_a_queue_name_outside_the_rule_is_refused(name):
    with pytest.raises(InvalidTask, match="is not valid: write 1 to 63 of the letters"):
        odd_tasks.good.using(queue_name=name)


def test_a_queue_that_the_backend_does_not_have_is_refused():
    with pytest.raises(
        InvalidTask,
        match=r"'nosuch' is not valid for backend 'default': write one of its QUEUES \(",
    ):
        odd_tasks.good.using(queue_name="nosuch")
    with pytest.raises(InvalidTaskBackend):
        odd_tasks.good.using(backend="nosuch")


def nested():
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (odd_tasks.partial, "not a function defined at the top level"),
        (odd_tasks.async_partial, "not a function defined at the top level"),
        (odd_tasks.instance, "not a function defined at the top level"),
        (odd_tasks.instance.method, "not a function defined at the top level"),
        (odd_tasks.Callable_.static, "not a function defined at the top level"),
        (odd_tasks.nothing, "not a function defined at the top level"),
        (nested(), "not a function defined at the top level"),
        (print, "not a function defined at the top level"),
        (odd_tasks.generator, "is a generator: calling it would run nothing"),
        (odd_tasks.async_generator, "is a generator: calling it would run nothing"),
    ],
)
@pytest.mark.spec("S22", "D104", "D84", "D123")
def test_what_a_worker_could_not_find_or_run_is_refused_at_the_decorator(function, sentence):
    with pytest.raises(InvalidTask, match=sentence):
        task(function)


@pytest.mark.spec("S22")
def test_a_function_of_the_main_module_is_refused(monkeypatch):
    monkeypatch.setattr(odd_tasks.undecorated, "__module__", "__main__")
    with pytest.raises(InvalidTask, match="stands in __main__, which a worker cannot import"):
        task(odd_tasks.undecorated)


def test_an_atomic_coroutine_is_refused():
    with pytest.raises(InvalidTask, match="atomic needs a plain function"):
        odd_tasks.coroutine.using(atomic=True)


@pytest.mark.spec("S22")
def test_a_task_whose_name_leads_elsewhere_is_refused_at_the_enqueue():
    hidden = task(odd_tasks.undecorated)  # the module's own name is still the bare function
    with pytest.raises(EnqueueError, match=r"a worker could not run this: .* is not a task"):
        job_row.draft(hidden, [], {}, settings())


@pytest.mark.spec("S31")
def test_the_row_keeps_what_the_call_itself_changed_and_nothing_else():
    assert job_row.draft(odd_tasks.chosen, [], {}, settings())["options"] == "{}"
    changed = odd_tasks.chosen.using(timeout=None, max_attempts=9, backoff=odd_tasks.seconds)
    row = job_row.draft(changed, [], {}, settings())
    assert json.loads(row["options"]) == {
        "timeout": None,
        "backoff": f"{HOME}.seconds",
    }
    assert row["max_attempts"] == 9


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("", "is not a dotted path"),
        ("good", "is not a dotted path"),
        (f"{HOME}.gone", "does not define a"),
        ("tests.unit.gone.good", "No module named"),
        ("os.system", "os.system is not a task"),
        (f"{HOME}.os", "is not a task"),
        (f"{HOME}.undecorated", "is not a task: decorate it with @task"),
        (f"{HOME}.NUMBER", "is not a task"),
        ("tests.unit.broken_module.good", "importing tests.unit.broken_module failed"),
        ("tests.unit.leaving_module.good", "importing tests.unit.leaving_module failed"),
    ],
)
@pytest.mark.spec("S61")
def test_a_path_without_a_task_is_unknown_and_nothing_is_called(path, sentence):
    with pytest.raises(UnknownTask, match=sentence):
        resolve(path)


def test_a_stored_path_leads_back_to_the_task():
    assert resolve(odd_tasks.good.module_path) is odd_tasks.good
    assert pickle.loads(pickle.dumps(odd_tasks.chosen)) == odd_tasks.chosen


@pytest.mark.spec("S22")
def test_arguments_are_checked_against_the_function():
    check_arguments(odd_tasks.good, [1], {"text": "x"})
    check_arguments(odd_tasks.with_context, [1], {})
    for args, kwargs in (([], {}), ([1, 2], {}), ([1], {"other": 2}), ([1], {"number": 1})):
        with pytest.raises(TypeError, match=r"^tests.unit.odd_tasks.good\(number, \*, text=''\): "):
            check_arguments(odd_tasks.good, args, kwargs)


@pytest.mark.spec("S19")
def test_the_signature_is_stored_without_annotations_and_context():
    assert signature_text(odd_tasks.good.func) == "(number, *, text='')"
    assert signature_text(odd_tasks.good.func, takes_context=True) == "(*, text='')"


@pytest.mark.spec("S240")
async def test_a_task_can_be_called_without_the_queue():
    assert odd_tasks.good.func(3) == 3
    assert await odd_tasks.good.acall(3) == 3
    assert await odd_tasks.coroutine.acall(3) == 4


@pytest.mark.parametrize("backend", ["ImmediateBackend", "DummyBackend"])
def test_the_backends_for_tests_know_our_options(settings, backend):
    settings.TASKS = {"default": {"BACKEND": f"jobqueue.testing.{backend}", "QUEUES": []}}
    made = task(max_attempts=2, timeout=None)(odd_tasks.undecorated)
    assert options_of(made) == {"max_attempts": 2, "timeout": None}
    with pytest.raises(InvalidTask, match="max_attempts must be"):
        made.using(max_attempts=0)


REFUSED = [
    (ArgumentsError, "args[0] is of type bytes", [b"x"], {}),
    (ArgumentsError, "args[0] has the key 1", [{1: 2}], {}),
    (ArgumentsError, "args[0] is nan", [float("nan")], {}),
    (ArgumentsError, "args[0] contains a NUL", ["a\0"], {}),
    (ArgumentsError, "args[0] contains half a surrogate", ["\ud800"], {}),
    (ArgumentsError, "ARGS_MAX_BYTES allows", ["x" * 2**21], {}),
    (ArgumentsError, "kwargs['number'] is of type set", [], {"number": {1}}),
    (TypeError, "missing a required argument: 'number'", [], {}),
    (TypeError, "too many positional arguments", [1, 2, 3], {}),
    (TypeError, "unexpected keyword argument 'other'", [1], {"other": 2}),
]


@pytest.mark.parametrize(
    "backend", ["backend.JobQueueBackend", "testing.ImmediateBackend", "testing.DummyBackend"]
)
@pytest.mark.parametrize(("kind", "words", "args", "kwargs"), REFUSED)
def test_each_of_our_backends_refuses_the_same_calls_with_the_same_words(
    settings, backend, kind, words, args, kwargs
):
    settings.TASKS = {"default": {"BACKEND": f"jobqueue.{backend}", "QUEUES": ["default"]}}
    with pytest.raises(kind) as error:
        odd_tasks.returns.enqueue(*args, **kwargs)
    assert words in str(error.value)
    with pytest.raises(InvalidTask, match=r"write one of its QUEUES \(default\)"):
        odd_tasks.returns.using(queue_name="mail")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bytes", "result is of type bytes"),
        ("keys", "result has the key 1"),
        ("nan", "result is nan"),
        ("big", "RESULT_MAX_BYTES allows"),
        ("coroutine", "the task returned a coroutine, which nobody has run"),
    ],
)
def test_a_job_run_at_once_fails_with_a_result_that_a_worker_would_refuse(settings, name, words):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.testing.ImmediateBackend"}}
    result = odd_tasks.returns.enqueue(name)
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is NotJSON
    assert words in result.errors[0].traceback
    result = odd_tasks.returns.enqueue("range")
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, [0, 1, 2])


def test_a_job_run_at_once_gets_its_arguments_as_a_worker_reads_them(settings):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.testing.ImmediateBackend"}}
    result = odd_tasks.returns.enqueue(UserDict(a=(1, 2)))
    assert result.args == [{"a": [1, 2]}]
    assert result.return_value == "dict"


def test_a_job_run_at_once_has_our_context(settings):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.testing.ImmediateBackend"}}
    assert odd_tasks.with_context.enqueue(4).return_value == [1, "JobContext"]


def test_a_handler_is_called_with_a_context_made_by_hand():
    context = context_for(odd_tasks.with_context, 4, attempt=2)
    assert odd_tasks.with_context.func(context, 4) == (2, "JobContext")
    assert context.task_result.attempts == 2
    context.raise_if_cancelled()
    context.control.cancelled = True
    with pytest.raises(JobCancelled):
        context.raise_if_cancelled()
    context.progress(1, 2)
    assert json.loads(context.control.progress)["done"] == 1


def test_a_context_is_refused_for_what_takes_none_or_other_arguments():
    for wrong in (odd_tasks.good, odd_tasks.undecorated):
        with pytest.raises(TypeError, match="takes no context: declare it with"):
            context_for(wrong, 1)
    with pytest.raises(TypeError, match="missing a required argument: 'number'"):
        context_for(odd_tasks.with_context)


def test_a_plain_task_of_another_backend_has_every_option_at_its_default(settings):
    settings.TASKS = {
        "default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": []},
        "dummy": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
    }
    plain = Task(func=odd_tasks.undecorated, backend="dummy")
    task_backends["default"].validate_task(plain)
    assert options_of(plain) == {}
    assert replace(odd_tasks.good, backend="default") == odd_tasks.good
