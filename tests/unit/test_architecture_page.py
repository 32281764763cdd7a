"""docs/architecture.md and docs/glossary.md: layers as in the contracts, files that exist."""

import re
import tomllib

import pytest

from tests.documents import ROOT, text

LINK = re.compile(r"\]\((\.\./jobqueue/[^)]+)\)")
CONTRACTS = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
LAYERS = {c["containers"][0]: c["layers"] for c in CONTRACTS if c["type"] == "layers"}


def section(page, heading):
    """The text under a heading, up to the next one."""
    _, _, rest = text(page).partition(f"\n{heading}\n")
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(page, heading):
    """The cells of the table under a heading, without its two first lines."""
    lines = [line for line in section(page, heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize(
    ("package", "heading"), [("jobqueue", "### The app"), ("jobqueue.worker", "### The worker")]
)
def test_a_table_of_layers_is_the_contract(package, heading):
    tables = [
        sorted(re.findall(r"`(\w+)`", names)) for names, _ in rows("docs/architecture.md", heading)
    ]
    assert tables == [sorted(re.findall(r"\w+", layer)) for layer in LAYERS[package]]


def test_no_contract_of_layers_is_without_a_table():
    assert set(LAYERS) == {"jobqueue", "jobqueue.worker"}


def test_where_to_find_it_answers_each_question_with_files_that_exist():
    answers = rows("docs/architecture.md", "## Where to find it")
    assert len(answers) >= 10
    for question, answer in answers:
        files = re.findall(r"\]\(([^)]+)\)", answer)
        assert files, question
        assert all((ROOT / "docs" / file).is_file() for file in files), question


def test_a_function_that_the_page_names_with_its_file_is_there():
    named = re.findall(r"`(\w+)` in \[[^]]+\]\(([^)]+)\)", text("docs/architecture.md"))
    assert len(named) >= 4
    for name, file in named:
        assert f"def {name}(" in (ROOT / "docs" / file).read_text(), (name, file)


def test_the_paths_of_both_drawings_and_of_the_text_exist():
    page = text("docs/architecture.md")
    folders = [ROOT / "jobqueue", ROOT / "jobqueue" / "worker"]
    paths = re.findall(r"(?<![\w./])([a-z_]+(?:/[a-z_]+)+)(?:\.py)?(?![\w/])", page)
    assert len(paths) > 20
    for path in paths:
        assert any((folder / path).with_suffix(".py").is_file() for folder in folders), path


def test_the_glossary_has_at_most_25_words_each_with_one_sentence_and_its_file():
    words = re.findall(r"^\| ([a-z ]+) \| (.+) \| (.+) \|$", text("docs/glossary.md"), re.MULTILINE)
    words = [row for row in words if row[0] != "word"]
    assert 10 < len(words) <= 25
    assert [word for word, _, _ in words] == sorted({word for word, _, _ in words})
    for word, sentence, file in words:
        assert re.fullmatch(r"[^.]+\.", sentence), word
        (target,) = LINK.findall(file)
        assert (ROOT / "docs" / target).is_file(), word
