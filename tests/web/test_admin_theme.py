import ast
import gettext
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.template import Template
from django.templatetags.i18n import BlockTranslateNode, TranslateNode
from django.test import Client
from django.utils import translation

from jobqueue.admin import labels
from jobqueue.models import Schedule
from jobqueue.models.attempt import OUTCOME_LABELS
from jobqueue.models.job import STATE_LABELS
from jobqueue.states import Outcome, Phase, Reason, State
from tests.web import rows

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "jobqueue"
PLACES = re.compile(r"%\(\w+\)s|%\(\w+\)d")
LOCALE = ROOT / "jobqueue" / "locale" / "de" / "LC_MESSAGES"


@pytest.mark.django_db(transaction=True)
def test_every_page_works_in_unfolds_theme() -> None:
    pytest.importorskip("unfold")
    User.objects.create_superuser("ann", password="ann")
    job, worker = rows.job(State.RUNNING), rows.worker()
    schedule = Schedule.objects.create(name="nightly", task=rows.TASK, cron="0 3 * * *")
    pages = ["dashboard/", "job/", f"job/{job.pk}/", "queue/", "worker/", f"worker/{worker.pk}/"]
    pages += ["leaderlease/", "schedule/", "schedule/new/"]
    pages += [f"schedule/{schedule.pk}/", f"schedule/{schedule.pk}/edit/"]
    addresses = [f"/admin/jobqueue/{page}" for page in pages]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "DJANGO_SETTINGS_MODULE": "tests.web.unfold_settings",
        "UNFOLD_DATABASE": str(connection.settings_dict["NAME"]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.web.unfold_pages", json.dumps(addresses)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr


def test_no_style_or_script_is_written_into_a_page() -> None:
    """A site with a content security policy shows the pages as they are."""
    for file in (APP / "templates").rglob("*.html"):
        text = file.read_text()
        assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?! src=)", text), file


def test_the_pages_are_shown_in_german(operator: Client) -> None:
    job = rows.job(State.DEAD)
    with translation.override("de"):
        shown = operator.get("/admin/jobqueue/job/").content.decode()
        assert "Gescheitert" in shown
        assert "Job-Warteschlange" in operator.get("/admin/").content.decode()
        assert "Warteschlange" in shown
        done = operator.post(
            "/admin/jobqueue/job/act/retry/", {"job": job.pk, "confirmed": "1"}, follow=True
        )
        assert "1 Job wiederholt." in done.content.decode()


def entries() -> dict[tuple[str, str, str], list[str]]:
    """The German file: (context, text, plural) to its translations."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for block in (LOCALE / "django.po").read_text().split("\n\n")[1:]:
        assert "fuzzy" not in block
        assert "#~" not in block
        words: dict[str, str] = {}
        last = ""
        for line in block.splitlines():
            if line.startswith("msg"):
                last, _, line = line.partition(" ")
            if line.startswith('"'):
                words[last] = words.get(last, "") + json.loads(line)
        if words:
            key = (words.get("msgctxt", ""), words["msgid"], words.get("msgid_plural", ""))
            assert key not in found, key
            found[key] = [text for name, text in words.items() if name.startswith("msgstr")]
    return found


def texts_of_python() -> Iterator[tuple[str, str, str]]:
    """Every text that the app's modules mark for translation."""
    for file in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", "")).removesuffix("_lazy")
            given = [getattr(argument, "value", None) for argument in node.args]
            if name in ("_", "gettext"):
                yield "", given[0], ""
            elif name == "ngettext":
                yield "", given[0], given[1]
            elif name == "pgettext":
                yield given[0], given[1], ""


def texts_of_templates() -> Iterator[tuple[str, str, str]]:
    """Every text that the app's templates mark for translation."""
    for file in (APP / "templates").rglob("*.html"):
        for node in walk(Template(file.read_text()).nodelist):
            if isinstance(node, TranslateNode):
                yield "", str(node.filter_expression.var.literal), ""
            elif isinstance(node, BlockTranslateNode):
                single, _ = node.render_token_list(node.singular)
                many = node.render_token_list(node.plural)[0] if node.plural else ""
                yield "", single, many
        for literal in re.findall(r"_\(\"([^\"]+)\"\)", file.read_text()):
            yield "", literal, ""


def walk(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for name in getattr(node, "child_nodelists", ()):
            yield from walk(getattr(node, name, None) or ())


def test_every_string_is_translated_to_german_and_the_compiled_file_is_current() -> None:
    german = entries()
    marked = {*texts_of_python(), *texts_of_templates()}
    assert marked - german.keys() == set()
    assert german.keys() - marked == set()
    with (LOCALE / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for (context, single, many), translated in german.items():
        assert translated, single
        assert all(translated), single
        assert all(
            set(PLACES.findall(text)) <= set(PLACES.findall(single + many)) for text in translated
        )
        if many:
            assert [compiled.ngettext(single, many, n) for n in (1, 2)] == translated
        elif context:
            assert [compiled.pgettext(context, single)] == translated
        else:
            assert [compiled.gettext(single)] == translated
            assert set(PLACES.findall(translated[0])) == set(PLACES.findall(single))


def test_every_state_outcome_phase_and_reason_has_a_label() -> None:
    assert set(labels.REASONS) == set(Reason)
    assert set(labels.PHASES) == set(Phase)
    assert {*STATE_LABELS} == {*State}
    assert {*OUTCOME_LABELS} == {*Outcome}
