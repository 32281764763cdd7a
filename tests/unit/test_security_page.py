"""docs/security.md: each promise names tests that are there."""

import ast
import re

import pytest

from tests.documents import ROOT, security_tests, text

PROMISE = re.compile(r"^\| (?P<promise>.+?) \| (?P<tests>`tests/.+?) \|$", re.MULTILINE)


def promises() -> list[str]:
    page = text("docs/security.md")
    section = page.partition("## Promises")[2].partition("## Not promised")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_each_promise_names_its_test() -> None:
    assert len(promises()) > 15
    for line in promises():
        assert PROMISE.match(line), line


@pytest.mark.parametrize("name", sorted(set(security_tests())))
def test_a_named_test_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    functions = {
        getattr(node, "name", "") or "" for node in ast.walk(ast.parse((ROOT / file).read_text()))
    }
    assert test in functions if test else any(each.startswith("test_") for each in functions)


def test_matrix_fuzz_oracle_grants_and_browser_are_among_them() -> None:
    assert {
        "tests/web/test_admin_permissions.py",
        "tests/web/test_fuzz.py",
        "tests/web/test_admin_jobs.py::test_a_search_reveals_nothing_about_covered_values",
        "tests/processes/test_start.py::"
        "test_the_webs_role_steers_everything_and_cannot_rewrite_history",
        "tests/browser/test_csp.py",
    } <= set(security_tests())
