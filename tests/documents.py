"""The documents and the blocks of code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str | None = None) -> list[str]:
    """Return the page's blocks of code: of one language, or all."""
    found = BLOCK.findall(text(page))
    return [block for name, block in found if language is None or name == language]


def security_tests() -> list[str]:
    """Return the tests that docs/security.md names for its promises: files, or `file::test`."""
    return re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", text("docs/security.md"))
