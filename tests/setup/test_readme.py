"""The README, followed to the letter in a project that `django-admin` has just made."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from django.core.management import call_command

from tests.databases import ROOT, new_database, url_of
from tests.documents import blocks

DATABASE = """
import environ
DATABASES = {"default": environ.Env.db_url_config(__import__("os").environ["DATABASE_URL"])}
DATABASES["default"]["HOST"] = DATABASES["default"].get("OPTIONS", {}).pop(
    "host", DATABASES["default"]["HOST"]
)
"""
VIEW = """
from types import SimpleNamespace
from django.db import transaction
from shop.tasks import send_receipt
order = SimpleNamespace(pk=7)
with transaction.atomic():
    {enqueue}
"""
FOUND = "SELECT task, args, state FROM jobqueue_job"

type Manage = Callable[..., tuple[int, str]]


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    def run(*arguments: str, url: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={
                **{k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"},
                "DATABASE_URL": url,
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.timeout(120)
def test_its_commands_make_a_new_project_run_its_first_job(manage: Manage, tmp_path: Path) -> None:
    settings, tasks, view = blocks("README.md", "python")
    with new_database() as name:
        url = url_of(name)
        call_command("startproject", "shop", tmp_path)
        with (tmp_path / "shop/settings.py").open("a") as file:
            file.write(f'{DATABASE}\nINSTALLED_APPS += ["shop"]\n{settings}')
        (tmp_path / "shop/tasks.py").write_text(tasks)
        code, said = manage("manage.py", "check", "--fail-level", "WARNING", url=url)
        assert (code, said) == (0, "System check identified no issues (0 silenced).\n")
        code, said = manage("manage.py", "migrate", url=url)
        assert code == 0, said
        script = VIEW.format(enqueue=view.splitlines()[-1])
        code, said = manage("manage.py", "shell", "-v0", "-c", script, url=url)
        assert code == 0, said
        code, said = manage("manage.py", "runworker", "--until-idle", url=url)
        assert code == 0, said
        with psycopg.connect(url) as connection:
            found = connection.execute(FOUND).fetchall()
        assert found == [("shop.tasks.send_receipt", [7], "SUCCEEDED")]
        code, said = manage("manage.py", "jobqueue", "doctor", url=url)
        assert (code, said) == (
            3,
            "warning: No worker is running. Start one: manage.py runworker\n",
        )
