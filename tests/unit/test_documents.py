"""What the documents say is what the code does."""

import ast
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from jobqueue.conf import Settings
from jobqueue.store.workers import TABLES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `([A-Z_]+)` \| `(.+?)` \| (.+) \|$", re.MULTILINE)
LINK = re.compile(r"\[[^]]+\]\(([^)#]+)(?:#[^)]*)?\)")


def default(field):
    return field.default if field.default is not MISSING else field.default_factory()


@pytest.mark.spec("S232")
def test_the_table_of_the_settings_is_the_dataclass_in_its_order():
    documented = [(key, ast.literal_eval(text)) for key, text, _ in ROW.findall(PAGE)]
    assert documented == [(field.name.upper(), default(field)) for field in fields(Settings)]


def test_the_documented_rights_name_every_table():
    granted = PAGE[PAGE.index("```sql") :]
    assert set(re.findall(r"jobqueue_(?!job_id_seq)[a-z]+", granted)) == set(TABLES)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_link_to_a_file_of_ours_leads_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
