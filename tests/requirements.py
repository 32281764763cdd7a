"""A pytest plugin: which test shows which requirement or case, and how it went (`make spec`)."""

import re
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

FILE = Path(__file__).with_suffix(".toml")
WORST = ("failed", "error", "skipped", "passed", "not run")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of the table. `partly`: what its tests do not show; `without`: why it has none."""

    rank: str
    words: str
    partly: str = ""
    without: str = ""


def requirements() -> dict[str, Requirement]:
    """Return every requirement and case, in the order of the ids."""
    tables = tomllib.loads(FILE.read_text())
    partly, without = tables.pop("partly"), tables.pop("without")
    found = {
        id: Requirement(rank.removesuffix("s"), words, partly.pop(id, ""), without.pop(id, ""))
        for rank, lines in tables.items()
        for id, words in lines.items()
    }
    if unknown := [*partly, *without]:
        raise pytest.UsageError(f"{FILE.name}: no requirement {unknown}")
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(id: str) -> tuple[str, int, str]:
    letter, number, rest = re.fullmatch(r"([A-Z])(\d+)([a-z]?)", id).groups()  # type: ignore[union-attr]
    return {"S": "0", "A": "1", "D": "2"}[letter], int(number), rest


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
                    if id not in self.known:
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
        for id, one in self.known.items():
            write(f"{id:<6} {one.rank:<8} {self._result(id):<8} {one.words}")
            for kind, why in (("partly", one.partly), ("without a test", one.without)):
                if why:
                    write(f"{'':24}{kind}: {why}")
            for name, count in self._names(id).items():
                write(f"{'':24}{name}" + (f" ({count} tests)" if count > 1 else ""))
        bare = self.bare("core")
        write("")
        write(f"core requirements without a test: {len(bare)} {' '.join(bare)}")

    def bare(self, rank: str) -> list[str]:
        """The requirements of this rank that no collected test names."""
        return [id for id, one in self.known.items() if one.rank == rank and not self.tests[id]]

    def _result(self, id: str) -> str:
        found = {self.results.get(test, "not run") for test in self.tests[id]}
        return min(found, key=WORST.index, default="-")

    def _names(self, id: str) -> Counter[str]:
        return Counter(test.partition("[")[0] for test in dict.fromkeys(self.tests[id]))
