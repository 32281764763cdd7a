"""The table of requirements and cases: each case has its test, or a line that says why not."""

import re
from pathlib import Path

from tests.requirements import requirements

TESTS = Path(__file__).resolve().parents[1]


def named_by_tests() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for mark in re.findall(r"pytest\.mark\.spec\(([^)]*)\)", path.read_text()):
            found.update(re.findall(r'"([A-Z]\d+[a-z]?)"', mark))
    return found


def test_every_case_has_a_test_or_a_reason() -> None:
    named = named_by_tests()
    cases = {id: one for id, one in requirements().items() if one.rank == "case"}
    assert len(cases) == 128
    assert [id for id, one in cases.items() if (id in named) == bool(one.without)] == []


def test_what_is_shown_in_part_has_a_test() -> None:
    named = named_by_tests()
    assert [id for id, one in requirements().items() if one.partly and id not in named] == []
