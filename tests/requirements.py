"""A pytest plugin: which test shows which requirement, and how it went (`make spec`)."""

import re
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).with_suffix(".toml")
CASE = re.compile(r"D\d{1,3}")  # a single case of bad input or bad weather; has no line here
WORST = ("failed", "error", "skipped", "passed", "not run")


def requirements() -> dict[str, tuple[str, str]]:
    """Return id to rank and words, in the order of the ids."""
    found = {
        id: (rank, words)
        for rank, lines in tomllib.loads(FILE.read_text()).items()
        for id, words in lines.items()
    }
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(id: str) -> tuple[bool, int, str]:
    letter, number, rest = re.fullmatch(r"([A-Z])(\d+)([a-z]?)", id).groups()  # type: ignore[union-attr]
    return letter == "A", int(number), rest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spec", action="store_true", help="print requirement, tests and result at the end"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Table(config), "requirements-table")


class Table:
    """Collects the marks and the results of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self.wanted = config.getoption("--spec")
        self.known = requirements()
        self.tests: dict[str, list[str]] = defaultdict(list)
        self.results: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("spec"):
                for id in mark.args:
                    if id not in self.known and not CASE.fullmatch(id):
                        raise pytest.UsageError(f"{item.nodeid}: no requirement {id!r}")
                    self.tests[id].append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        before = self.results.get(report.nodeid, outcome)
        self.results[report.nodeid] = min(before, outcome, key=WORST.index)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.wanted:
            return
        write = terminalreporter.write_line
        terminalreporter.section("requirements")
        for id, (rank, words) in self.known.items():
            write(f"{id:<6} {rank:<8} {self._result(id):<8} {words}")
            for name, count in self._names(id).items():
                write(f"{'':24}{name}" + (f" ({count} cases)" if count > 1 else ""))
        bare = [id for id, (rank, _) in self.known.items() if rank == "core" and not self.tests[id]]
        write("")
        write(f"core requirements without a test: {len(bare)} {' '.join(bare)}")

    def _result(self, id: str) -> str:
        found = {self.results.get(test, "not run") for test in self.tests[id]}
        return min(found, key=WORST.index, default="-")

    def _names(self, id: str) -> Counter[str]:
        return Counter(test.partition("[")[0] for test in dict.fromkeys(self.tests[id]))
