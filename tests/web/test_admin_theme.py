import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import translation

from jobqueue.states import State
from tests.web import rows

ROOT = Path(__file__).resolve().parents[2]
LOCALE = ROOT / "jobqueue" / "locale" / "de" / "LC_MESSAGES"


@pytest.mark.django_db(transaction=True)
def test_every_page_stands_in_unfolds_theme_too() -> None:
    pytest.importorskip("unfold")
    User.objects.create_superuser("ann", password="ann")
    job, worker = rows.job(State.RUNNING), rows.worker()
    pages = ["dashboard/", "job/", f"job/{job.pk}/", "queue/", "worker/", f"worker/{worker.pk}/"]
    addresses = [f"/admin/jobqueue/{page}" for page in [*pages, "leaderlease/", "schedule/"]]
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


def test_the_pages_speak_german(operator: Client) -> None:
    job = rows.job(State.DEAD)
    with translation.override("de"):
        shown = operator.get("/admin/jobqueue/job/").content.decode()
        assert "Gescheitert" in shown
        assert "Warteschlange" in shown
        done = operator.post(
            "/admin/jobqueue/job/act/retry/", {"job": job.pk, "confirmed": "1"}, follow=True
        )
        assert "1 Job wiederholt." in done.content.decode()


def test_every_text_has_its_german_one_and_the_compiled_file_is_current() -> None:
    import gettext

    with (LOCALE / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    texts = (LOCALE / "django.po").read_text()
    entries = [entry for entry in texts.split("\n\n")[1:] if entry.strip()]
    assert len(entries) > 250
    assert "#~" not in texts
    for entry in entries:
        lines = dict(line.split(" ", 1) for line in entry.splitlines() if not line.startswith("#"))
        source = json.loads(lines["msgid"])
        german = json.loads(lines.get("msgstr") or lines["msgstr[0]"])
        assert german, source
        if "msgid_plural" in lines:
            many = json.loads(lines["msgid_plural"])
            assert compiled.ngettext(source, many, 1) == german
            assert json.loads(lines["msgstr[1]"])
        else:
            assert compiled.gettext(source) == german
