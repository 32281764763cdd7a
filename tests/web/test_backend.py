"""The contract of Django's own tasks, as their documentation has it."""

import contextlib
import datetime as dt
from uuid import uuid4

import pytest
from django.core.checks import Error, Warning
from django.db import IntegrityError, transaction
from django.tasks import TaskResultStatus, default_task_backend, task_backends
from django.tasks import task as django_task
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished
from django.utils import timezone

from jobqueue import enqueue_many, operations
from jobqueue.checks import check_backend, check_command, check_pages
from jobqueue.exceptions import ArgumentsError
from jobqueue.models import Job, Worker
from jobqueue.states import Outcome, State
from tests.sample_tasks import post, send
from tests.unit import odd_tasks
from tests.web import rows

pytestmark = pytest.mark.django_db
SEND = "tests.sample_tasks.send"


def test_every_capability_that_is_claimed_is_there():
    for name in ("defer", "async_task", "get_result", "priority"):
        assert getattr(default_task_backend, f"supports_{name}") is True


@pytest.mark.spec("S234")
def test_a_new_job_s_result_is_ready_and_knows_its_call():
    result = send.enqueue(1, text="x")
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.READY, 0, [])
    assert (result.args, result.kwargs, result.backend) == ([1], {"text": "x"}, "default")
    assert result.enqueued_at is not None
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert not result.is_finished
    with pytest.raises(ValueError, match="has not finished yet"):
        _ = result.return_value
    assert send.get_result(result.id) == result


@pytest.mark.spec("S234")
@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.SCHEDULED, TaskResultStatus.READY),
        (State.READY, TaskResultStatus.READY),
        (State.BLOCKED, TaskResultStatus.READY),
        (State.RUNNING, TaskResultStatus.RUNNING),
        (State.SUCCEEDED, TaskResultStatus.SUCCESSFUL),
        (State.DEAD, TaskResultStatus.FAILED),
        (State.CANCELLED, TaskResultStatus.FAILED),
    ],
)
def test_every_state_has_its_word_in_django(state, status):
    job = rows.job(state, task=SEND)
    result = send.get_result(str(job.pk))
    assert result.status == status
    assert result.is_finished == job.is_final


@pytest.mark.spec("S234", "S15")
def test_errors_workers_and_attempts_come_from_the_history():
    job = rows.job(State.DEAD, task=SEND, attempts=2, failures=2)
    for number in (2, 1):
        rows.attempt(job, number, error_class="builtins.ValueError", traceback=f"trace {number}")
    result = send.get_result(str(job.pk))
    assert [error.traceback for error in result.errors] == ["trace 1", "trace 2"]
    assert result.errors[0].exception_class is ValueError
    assert result.attempts == len(result.worker_ids) == 2
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_running_attempt_is_counted_and_its_worker_is_the_last():
    worker = uuid4()
    job = rows.job(State.RUNNING, task=SEND, worker=worker, attempts=1, failures=1)
    rows.attempt(job, 1)
    result = send.get_result(str(job.pk))
    assert (result.attempts, result.worker_ids[-1]) == (2, str(worker))
    assert result.last_attempted_at == job.claimed_at


def test_refresh_follows_the_row_to_its_result():
    result = send.enqueue()
    now = timezone.now()
    Job.objects.filter(pk=result.id).update(
        state=State.SUCCEEDED, finished_at=now, started_at=now, result={"sent": 1}, attempts=1
    )
    rows.attempt(Job.objects.get(pk=result.id), 1, Outcome.SUCCEEDED)
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, {"sent": 1})
    assert (result.finished_at, result.attempts) == (now, 1)


@pytest.mark.parametrize(
    "id",
    [
        "",
        "0",
        "-1",
        "abc",
        "1.0",
        " 1",
        "9" * 19,
        "9" * 5000,
        "²",
        "0b3c9e0e-6d5f-4c59-9f5e-1f6f0c1f2a3b",
        None,
    ],
)
def test_an_id_without_a_job_is_the_documented_error(id):
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(id)


def test_the_result_of_another_task_is_the_documented_error():
    with pytest.raises(TaskResultMismatch):
        post.get_result(send.enqueue().id)


def test_the_result_of_a_task_that_this_code_does_not_have_is_shown():
    job = rows.job(task="gone.away")
    with pytest.raises(TaskResultDoesNotExist, match=rf"Job {job.pk}: gone\.away: No module"):
        default_task_backend.get_result(str(job.pk))


def test_a_result_survives_the_removal_of_its_queue_and_backend_from_the_settings():
    job = rows.job(State.DEAD, task=SEND, queue="old", backend="old")
    assert send.get_result(str(job.pk)).backend == "old"


def test_using_changes_one_call_and_not_the_task():
    later = dt.datetime(2090, 1, 1, tzinfo=dt.UTC)
    changed = post.using(priority=-3, queue_name="imports", run_after=later)
    result = changed.get_result(changed.enqueue("a").id)
    assert (result.task.priority, result.task.queue_name) == (-3, "imports")
    assert (post.priority, post.queue_name, post.run_after) == (5, "mail", None)
    for bad in ({"priority": 1000}, {"queue_name": "nosuch"}, {"run_after": "soon"}):
        with pytest.raises(InvalidTask):
            post.using(**bad)


def rule(failures: int) -> float:
    return 2.0


def test_the_result_of_a_job_is_the_one_that_its_enqueue_returned():
    """Nothing of the call is lost on the way through the row."""
    zone = dt.timezone(dt.timedelta(hours=5))
    for changes in (
        {"run_after": dt.datetime(2090, 1, 1, 3, 4, 5, 6, zone)},
        {"run_after": dt.datetime(1960, 1, 1, tzinfo=dt.UTC), "expires": 60.5},
        {"priority": 9, "queue_name": "imports", "max_attempts": 2},
        {"max_attempts": 5},
        {"timeout": None, "backoff": rule, "interruptible": False},
    ):
        task = send.using(**changes)
        result = task.enqueue(1)
        assert result.task == task
        assert task.get_result(result.id) == result
        (job,) = enqueue_many([(task, (1,))])
        assert task.get_result(str(job)).task == task


def test_a_field_that_a_later_django_adds_passes_and_is_kept(settings, monkeypatch):
    settings.TASKS = {"default": {"BACKEND": "tests.unit.odd_tasks.LaterBackend"}}
    later = django_task(max_attempts=3, metadata={"team": "a"})(odd_tasks.returns.func)
    monkeypatch.setattr(odd_tasks, "returns", later)
    monkeypatch.setattr("jobqueue.tasks._known", {})
    assert task_backends["default"].supports_metadata
    for task in (later, later.using(metadata={"order": (7,)}, priority=2), later.using()):
        result = task.enqueue(1)
        found = later.get_result(result.id).task
        assert found.metadata == ({"order": [7]} if task.priority else {"team": "a"})
        assert (found.max_attempts, found.priority) == (3, task.priority)
    with pytest.raises(ArgumentsError, match=r"metadata\['when'\] is of type datetime"):
        later.using(metadata={"when": timezone.now()}).enqueue(1)
    with pytest.raises(TypeError, match=r"no option 'metadatum'; it knows .*metadata"):
        later.using(metadatum=1)
    with pytest.raises(TypeError, match="no option 'metadata'"):
        send.using(metadata={})  # under this Django there is none


def test_a_task_enqueued_through_another_alias_can_refresh_its_result(settings):
    settings.TASKS = {
        "default": {"BACKEND": "jobqueue.testing.DummyBackend"},
        "jobs": {"BACKEND": "jobqueue.backend.JobQueueBackend"},
    }
    result = task_backends["jobs"].enqueue(send, [], {})
    result.refresh()
    assert task_backends["jobs"].get_result(result.id) == result
    assert result.task.backend == "jobs"


def test_two_backends_share_the_tables_and_keep_their_queues(settings):
    settings.TASKS = {
        alias: {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": [queue]}
        for alias, queue in (("default", "default"), ("second", "other"))
    }
    there = send.using(backend="second", queue_name="other")
    result = there.enqueue()
    assert result.backend == there.get_result(result.id).backend == "second"
    assert task_backends["default"].get_result(result.id).task.backend == "second"
    with pytest.raises(InvalidTask):
        send.using(queue_name="other")


@pytest.fixture
def received():
    """Every signal of these tests, in order."""
    found = []

    def note(sender, task_result, signal, **_):
        name = {task_enqueued: "enqueued", task_finished: "finished"}[signal]
        found.append((name, sender, task_result.id, task_result.status))

    for signal in (task_enqueued, task_finished):
        signal.connect(note)
    yield found
    for signal in (task_enqueued, task_finished):
        signal.disconnect(note)


def test_an_enqueue_is_announced_once_by_the_backend_s_class(received):
    result = send.enqueue()
    backend = type(task_backends["default"])
    assert received == [("enqueued", backend, result.id, TaskResultStatus.READY)]


def test_a_refused_enqueue_is_not_announced(received):
    with pytest.raises(TypeError):
        send.enqueue(1, 2, 3)
    assert received == []


def test_a_job_that_is_cancelled_while_it_waits_is_announced_as_finished_once(
    received, django_capture_on_commit_callbacks
):
    result = send.enqueue()
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            operations.cancel(int(result.id))
    assert [name for name, *_ in received] == ["enqueued", "finished"]
    assert received[1][2:] == (result.id, TaskResultStatus.FAILED)


@contextlib.contextmanager
def connected(receiver):
    task_enqueued.connect(receiver)
    try:
        yield
    finally:
        task_enqueued.disconnect(receiver)


def raises(**_):
    raise RuntimeError("broken receiver")


def leaves(**_):
    raise SystemExit(3)


def breaks_the_transaction(**_):
    Job.objects.create(task="x.y", priority=500)


def swallows_its_database_error(**_):
    with contextlib.suppress(IntegrityError):
        Job.objects.create(task="x.y", priority=500)


def marks_for_rollback(**_):
    with contextlib.suppress(IntegrityError), transaction.atomic(savepoint=False):
        Job.objects.create(task="x.y", priority=500)


@pytest.mark.parametrize(
    "receiver",
    [raises, leaves, breaks_the_transaction, swallows_its_database_error, marks_for_rollback],
)
def test_a_broken_receiver_costs_neither_the_job_nor_the_caller_s_transaction(receiver, caplog):
    with connected(receiver), transaction.atomic():
        result = send.enqueue()
        second = send.enqueue()
    assert Job.objects.filter(pk__in=[result.id, second.id]).count() == 2
    assert Job.objects.count() == 2
    assert "signal_receiver" in caplog.text


def test_what_a_good_receiver_wrote_is_kept():
    def writes(**_):
        rows.worker(name="written")

    with connected(writes):
        send.enqueue()
    assert Worker.objects.filter(name="written").exists()


def test_queues_and_options_of_a_backend_are_checked(settings):
    settings.TASKS = {
        "default": {
            "BACKEND": "jobqueue.backend.JobQueueBackend",
            "QUEUES": ["good", "not good"],
            "OPTIONS": {"a": 1},
        },
        "open": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": []},
    }
    assert check_backend(task_backends["default"]) == [
        Error(
            "TASKS['default']['QUEUES'] holds 'not good', not a queue name.",
            hint="Write 1 to 63 of the letters a-z and A-Z, digits, '_', '.' and '-', "
            "the first one a letter or '_'.",
            id="jobqueue.E021",
        ),
        Warning(
            "TASKS['default']['OPTIONS'] is not read by jobqueue.",
            hint="Write the settings of the queue in JOBQUEUE.",
            id="jobqueue.W012",
        ),
    ]
    open_queues = Warning(
        "TASKS['open']['QUEUES'] is empty, so any queue name is accepted.",
        hint="A worker serves 'default' unless --queues names others, or '*' for every queue.",
        id="jobqueue.W011",
    )
    assert task_backends["open"].check() == [open_queues]  # as Django calls it


@pytest.mark.parametrize("wrong", ["default", 3, None, {"default": 1}])
def test_queues_that_are_no_list_are_an_error_and_not_read_as_letters(settings, wrong):
    settings.TASKS = {
        "default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": wrong},
    }
    assert task_backends["default"].check() == [
        Error(
            f"TASKS['default']['QUEUES'] is {wrong!r}, not a list.",
            hint='Write the queues\' names in a list, such as ["default"].',
            id="jobqueue.E022",
        )
    ]


def test_a_backend_without_the_app_is_an_error(settings, monkeypatch):
    monkeypatch.setattr("jobqueue.checks.apps.is_installed", lambda name: name != "jobqueue")
    assert check_backend(default_task_backend) == [
        Error(
            "TASKS['default'] uses jobqueue, which is not an installed app.",
            hint='Add "jobqueue" to INSTALLED_APPS.',
            id="jobqueue.E020",
        )
    ]


def test_a_command_of_the_same_name_in_another_app_is_warned_of(monkeypatch):
    assert check_command() == []
    commands = {"runworker": "channels"}
    monkeypatch.setattr("django.core.management.get_commands", lambda: commands)
    assert check_command() == [
        Warning(
            "`manage.py runworker` is the command of 'channels', not of jobqueue.",
            hint="Use `manage.py jobqueue worker`, or put 'jobqueue' before 'channels' in "
            "INSTALLED_APPS.",
            id="jobqueue.W010",
        )
    ]


def test_an_admin_without_htmx_is_warned_of(monkeypatch):
    assert check_pages() == []
    monkeypatch.setattr("jobqueue.checks.apps.is_installed", lambda name: name != "django_htmx")
    assert [message.id for message in check_pages()] == ["jobqueue.W013"]
