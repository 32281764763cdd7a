"""Which tasks operators may schedule is the project's choice; no name that is sent is imported."""

import sys
from pathlib import Path
from typing import Any

import pytest
from django.tasks import Task
from django.test import Client

import jobqueue
from jobqueue.insight import doctor
from jobqueue.models import Job, JobEvent, Schedule
from jobqueue.scheduling import declared, operator_tasks
from tests.sample_tasks import post, send
from tests.web import rows
from tests.web.test_admin_schedules import GOOD, LIST, NEW, made

RECEIPT, POST = rows.TASK, "tests.sample_tasks.post"
pytestmark = [
    pytest.mark.spec("S227", "S228"),
    pytest.mark.django_db,
    pytest.mark.usefixtures("operators_tasks"),
]


@pytest.fixture
def choose(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set OPERATOR_TASKS; nothing is declared but what the test declares."""
    monkeypatch.setattr(declared, "_declared", {})

    def choose(value: list[str] | None) -> None:
        settings.JOBQUEUE = {**settings.JOBQUEUE, "OPERATOR_TASKS": value}

    return choose


def test_by_default_the_tasks_of_declared_schedules_are_offered(choose: Any) -> None:
    choose(None)
    assert list(operator_tasks.offered()) == []
    jobqueue.schedule(name="nightly", task=post, args=["a"], cron="0 3 * * *")
    jobqueue.schedule(name="hourly", task=send, cron="0 * * * *")  # of no installed app
    assert list(operator_tasks.offered()) == [POST]


def test_the_setting_names_tasks_of_installed_apps_and_the_doctor_finds_other_names(
    choose: Any,
) -> None:
    choose([RECEIPT, "tests.sample_tasks.send", "os.system"])
    assert list(operator_tasks.offered()) == [RECEIPT]
    assert operator_tasks.unknown_names() == ["tests.sample_tasks.send", "os.system"]
    found = [str(finding) for finding in doctor.examine()]
    assert any("OPERATOR_TASKS" in text and "os.system" in text for text in found)
    choose(["*"])
    assert {RECEIPT, POST} <= set(operator_tasks.offered())
    assert operator_tasks.unknown_names() == []


def test_the_queues_own_tasks_are_never_offered(
    choose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobqueue import clock
    from tests.web import tasks

    own = Task(
        func=clock.database_time, priority=0, queue_name="default", backend="default",
        takes_context=False, run_after=None,
    )  # fmt: skip
    assert own.module_path == "jobqueue.clock.database_time"
    monkeypatch.setattr(tasks, "own", own, raising=False)
    for value in (["*"], ["jobqueue.clock.database_time"]):
        choose(value)
        assert not [path for path in operator_tasks.offered() if path.startswith("jobqueue")]


def test_a_module_that_cannot_be_imported_hides_no_other_app_s_tasks(
    choose: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_app").mkdir()
    (tmp_path / "broken_app/__init__.py").touch()
    (tmp_path / "broken_app/tasks.py").write_text("raise OSError('gone')\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "broken_app"]
    choose(["*"])
    assert RECEIPT in operator_tasks.offered()


def test_the_form_imports_nothing_that_is_sent_and_does_not_say_what_exists(
    operator: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_by_the_web.py").write_text("raise OSError('password=hunter2')\n")
    monkeypatch.syspath_prepend(tmp_path)
    says = []
    for module in ("found_by_the_web", "missing_module"):
        page = operator.post(NEW, GOOD | {"task": f"{module}.run"}).content.decode()
        assert "hunter2" not in page
        assert module not in sys.modules
        says.append(page.count("is not one of the available choices"))
    assert says == [1, 1]
    assert not Schedule.objects.exists()


def test_the_form_lists_what_is_offered_and_chooses_nothing_by_itself(
    operator: Client, choose: Any
) -> None:
    choose([RECEIPT])
    page = operator.get(NEW).content.decode()
    assert f'<option value="{RECEIPT}">' in page
    assert POST not in page
    row = made(task=POST, args=["a"])
    page = operator.get(f"{LIST}{row.pk}/edit/").content.decode()
    assert '<option value="" selected>' not in page  # not another task by a careless save
    answer = operator.post(f"{LIST}{row.pk}/edit/", GOOD | {"task": POST, "args": '["a"]'})
    assert answer.status_code == 200
    row.refresh_from_db()
    assert row.cron == "0 3 * * *"


@pytest.mark.parametrize("act", ["run", "enable"])
def test_what_is_not_offered_any_more_can_neither_be_run_nor_enabled(
    operator: Client, choose: Any, act: str
) -> None:
    choose([POST])
    row = made(enabled=act == "run")
    page = operator.get(f"{LIST}{row.pk}/").content.decode()
    assert "does not let operators schedule tests.web.tasks.send_receipt" in page
    answer = operator.post(f"{LIST}{row.pk}/act/{act}/", {"confirmed": "1"}, follow=True)
    assert "does not let operators schedule" in answer.content.decode()
    row.refresh_from_db()
    assert row.enabled == (act == "run")
    assert not Job.objects.exists()
    assert not JobEvent.objects.exists()
    choose([RECEIPT])
    operator.post(f"{LIST}{row.pk}/act/{act}/", {"confirmed": "1"})
    assert JobEvent.objects.count() == 1


def test_a_schedule_that_the_code_declares_runs_whatever_is_offered(
    operator: Client, choose: Any
) -> None:
    choose([])
    row = made(origin=Schedule.Origin.CODE)
    assert "does not let" not in operator.get(f"{LIST}{row.pk}/").content.decode()
    operator.post(f"{LIST}{row.pk}/act/run/", {"confirmed": "1"})
    assert Job.objects.count() == 1


def test_no_module_of_the_queue_defines_a_task() -> None:
    own = [
        f"{name}.{key}"
        for name, module in list(sys.modules.items())
        if name == "jobqueue" or name.startswith("jobqueue.")
        for key, value in vars(module).items()
        if isinstance(value, Task)
    ]
    assert own == []
