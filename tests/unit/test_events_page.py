"""docs/events.md lists the log events of the code: names, levels, fields."""

import ast
import re
from collections import defaultdict

from tests.documents import ROOT, text

LEVELS = {"exception": "error"} | {
    name: name for name in ("debug", "info", "warning", "error", "critical")
}
ROW = re.compile(r"^\| `([a-z_]+)` \| ([a-z, ]+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
OTHER_LINE = re.compile(r"^\| `", re.MULTILINE)
NAME = re.compile(r"[a-z]+(_[a-z]+)+")


def calls():
    """Every call of a logger in the app: name of the event, level, keywords that it spells out."""
    for file in sorted((ROOT / "jobqueue").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[event, *_]):
                    if method in LEVELS and ast.unparse(owner).endswith("log"):
                        yield f"{file.name}:{node.lineno}", event, method, node.keywords


def documented():
    return {
        name: (set(levels.split(", ")), set(fields.split(", ")))
        for name, levels, fields, _, _ in ROW.findall(text("docs/events.md"))
    }


def test_an_event_is_named_where_it_is_logged():
    """Neither put together nor passed on: whoever searches for the name finds the place."""
    for where, event, _, _ in calls():
        assert isinstance(event, ast.Constant), where
        assert NAME.fullmatch(event.value), (where, event.value)


def test_the_page_lists_every_event_once_with_its_levels():
    levels = defaultdict(set)
    for _, event, method, _ in calls():
        levels[event.value].add(LEVELS[method])
    page = text("docs/events.md")
    assert len(ROW.findall(page)) == len(OTHER_LINE.findall(page)) == len(documented())
    assert {name: level for name, (level, _) in documented().items()} == levels


def test_the_page_names_every_field_that_a_call_spells_out():
    rows = documented()
    for where, event, method, keywords in calls():
        _, fields = rows[event.value]
        logged = {k.arg for k in keywords if k.arg and k.arg != "exc_info"}
        if method == "exception" or any(k.arg == "exc_info" for k in keywords):
            logged.add("traceback")
        assert logged <= fields, (where, event.value, logged - fields)
