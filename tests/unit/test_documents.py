"""What the documents say is what the code does. Blocks that need a database: tests/web."""

import ast
import importlib
import re
import shlex
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from django.core.management import CommandError, load_command_class
from django.tasks import task_backends

from jobqueue import conf
from jobqueue.conf import Settings
from jobqueue.scheduling import declared
from jobqueue.store.workers import TABLES
from tests.documents import PAGES, ROOT, blocks, text

ROW = re.compile(r"^\| `([A-Z_]+)` \| `(.+?)` \| (.+) \|$", re.MULTILINE)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r'(?:src|srcset)="([^"]+)"')
COMMAND = re.compile(
    r"^(?:\$ )?(?:python )?(?:\.venv/bin/python )?manage\.py (runworker|jobqueue)\b"
)
INLINE = re.compile(r"`(?:python )?(manage\.py (?:runworker|jobqueue)[^`]*)`")


def default(field):
    return field.default if field.default is not MISSING else field.default_factory()


@pytest.mark.spec("S232")
def test_the_table_of_the_settings_is_the_dataclass_in_its_order():
    rows = ROW.findall(text("docs/settings.md"))
    documented = [(key, ast.literal_eval(written)) for key, written, _ in rows]
    assert documented == [(field.name.upper(), default(field)) for field in fields(Settings)]


def test_the_documented_rights_name_every_table():
    (granted,) = blocks("docs/settings.md", "sql")
    assert set(re.findall(r"jobqueue_(?!job_id_seq)[a-z]+", granted)) == set(TABLES)


def test_the_documented_count_of_connections_is_the_one_that_the_doctor_uses():
    words = ("no", "one", "two", "three", "four", "five", "six")
    own, leader = words[conf.WORKER_CONNECTIONS], words[conf.LEADER_CONNECTIONS]
    more, slots = words[conf.WORKER_CONNECTIONS + 1], conf.SECOND_CLAIM_SLOTS
    sizing = " ".join(text("docs/operating.md").split())
    assert (
        f"Connections: {own} per worker, {more} from a `CONCURRENCY` of {slots} on, "
        f"{leader} more for the leader, one for a supervisor"
    ) in sizing
    assert f"up to {words[conf.HANDLER_CONNECTIONS]} per running handler" in sizing
    architecture = " ".join(text("docs/architecture.md").split())
    assert f"A worker keeps {own}: claims" in architecture
    assert f"From {slots} slots on it opens a sixth" in architecture
    assert f"The leader has {leader} more" in architecture


@pytest.mark.parametrize(
    ("slots", "needed"),
    [([], 0), ([10], 2 * 10 + 5 + 2), ([10, 29, 30], 2 * 69 + 5 + 5 + 6 + 2)],
)
def test_a_fleet_needs_its_workers_connections_and_those_of_one_leader(slots, needed):
    assert conf.fleet_connections(slots, 0) == needed
    assert conf.fleet_connections(slots, 2) == needed + 2


def anchors(page: str) -> set[str]:
    """The names that GitHub and others give to headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_of_ours_leads_somewhere(page):
    for link in LINK.findall(text(page)) + IMAGE.findall(text(page)):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file.read_text()), link


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_reached_from_the_readme(page):
    linked = {ROOT / link.partition("#")[0] for link in LINK.findall(text("README.md"))}
    assert page == "README.md" or ROOT / page in linked


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_can_be_parsed(page):
    for block in blocks(page, "python"):
        ast.parse(block)


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page) for line in block.splitlines() if COMMAND.match(line)]
    found = [line.removeprefix("$ ") for line in lines] + INLINE.findall(text(page))
    # Those with … or [ ] are forms to be filled in.
    return [line for line in found if not re.search(r"[…\[\]]|\.\.\.|\|", line)]


def test_every_command_of_ours_is_understood():
    found = [line for page in PAGES for line in commands(page)]
    assert len(found) > 5
    for line in found:
        words = shlex.split(line, comments=True)
        name, *arguments = words[words.index("manage.py") + 1 :]
        parser = load_command_class("jobqueue", name).create_parser("manage.py", name)
        if name == "runworker" or arguments:
            try:
                parser.parse_args(arguments)
            except (CommandError, SystemExit) as error:
                pytest.fail(f"{line}: {error}")


def test_the_examples_of_settings_have_no_fault(settings):
    values: dict[str, object] = {}
    for block in blocks("docs/settings.md", "python"):
        exec(block, values)
    settings.JOBQUEUE, settings.TASKS = values["JOBQUEUE"], values["TASKS"]
    assert [fault.code for fault in conf.read()[1]] in ([], ["W001"])
    assert task_backends["default"].check() == []


def test_the_schedule_of_the_page_can_be_declared(tmp_path, monkeypatch):
    (block,) = blocks("docs/cron.md", "python")
    (tmp_path / "documented_schedule.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(declared, "_declared", {})
    importlib.import_module("documented_schedule")
    assert [d.cron for d in declared._declared.values()] == ["30 6 * * MON-FRI"]


SITE = "\n".join(file.read_text() for file in sorted((ROOT / "project/contacts").glob("*.py")))


def lines(code: str) -> list[str]:
    """Without comments and indentation."""
    return [" ".join(line.partition("  #")[0].split()) for line in code.splitlines()]


def test_the_tutorial_quotes_the_site_s_own_code():
    quoted, written = blocks("docs/tutorial.md", "python"), set(lines(SITE))
    assert len(quoted) == 4
    strange = [line for line in lines("\n".join(quoted)) if line not in written]
    # Of these two a part is left out.
    assert strange == [
        "Contact.objects.bulk_create(..., update_conflicts=True)",
        "deliver_webhook.using(run_after=timezone.now() + timedelta(seconds=60))"
        ".enqueue(webhook.pk)",
    ]


def test_the_tutorial_names_what_is_there():
    page = text("docs/tutorial.md")
    for path in re.findall(r"`((?:project|templates|docs)/[\w./-]+)`", page):
        assert (ROOT / path).exists(), path
    for label in re.findall(r"\*\*((?:Import|Cancel|Webhooks)[^*]*)\*\*", page):
        shown = "\n".join(p.read_text() for p in (ROOT / "templates/contacts").iterdir())
        assert label in shown + SITE or "200,000" in label, label


def test_the_make_targets_of_the_documents_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:`|^)make ([a-z]+)\b", text(page), re.MULTILINE)
        assert set(named) <= targets, page


def test_the_changelog_names_the_version():
    version = re.search(r'^version = "(.+)"', Path(ROOT / "pyproject.toml").read_text(), re.M)
    assert version
    assert "## [Unreleased]" in text("CHANGELOG.md") or f"## [{version[1]}]" in text("CHANGELOG.md")
