"""Values as pages may show them: secrets covered, the rest cut to a readable length."""

from __future__ import annotations

import json
import re
from typing import Any

from jobqueue.conf import settings

COVER = "••••••"
SHOWN_CHARACTERS = 4_000
DEEPEST = 40
# 13 to 19 digits, perhaps in groups: also found under an innocent key.
CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w.-])")


def redact(value: Any, depth: int = 0) -> Any:
    """Return the value with every secret covered: by its key, or because it is a card number."""
    if depth > DEEPEST:
        return "…"
    match value:
        case dict():
            return {
                key: COVER if is_secret(key) else redact(inner, depth + 1)
                for key, inner in value.items()
            }
        case list():
            return [redact(inner, depth + 1) for inner in value]
        case str():
            return CARD.sub(_cover_card, value)
        case int() if not isinstance(value, bool) and _is_card(str(value)):
            return COVER
        case _:
            return value


def is_secret(key: str) -> bool:
    """Whether the value under this key must not be shown."""
    name = key.casefold()
    return any(part.casefold() in name for part in settings().redact if part)


def arguments(args: list[Any], kwargs: dict[str, Any], signature: str) -> tuple[Any, Any]:
    """Return both redacted; a positional value goes by its parameter's name at the enqueue."""
    names = _names(signature)
    if len(args) < len(names) and names[0] in ("context", "ctx"):
        names = names[1:]
    covered = [
        COVER if position < len(names) and is_secret(names[position]) else redact(value)
        for position, value in enumerate(args)
    ]
    return covered, redact(kwargs)


def pretty(value: Any, limit: int = SHOWN_CHARACTERS) -> tuple[str, bool]:
    """Return readable JSON of a redacted value, and whether it was cut."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False)
    return (text, False) if len(text) <= limit else (text[:limit], True)


def _names(signature: str) -> list[str]:
    # The text is a rendered inspect.Signature: names, kinds and defaults.
    names = []
    for part in signature.strip("()").split(","):
        name = part.strip().split("=")[0].strip()
        if name == "*" or name.startswith("*"):
            break
        if name and name != "/":
            names.append(name)
    return names


def _cover_card(match: re.Match[str]) -> str:
    return COVER if _is_card(match.group()) else match.group()


def _is_card(text: str) -> bool:
    digits = [int(character) for character in text if character.isdecimal()]
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [d * 2 - 9 * (d > 4) for d in digits[-2::-2]]
    return sum(digits[-1::-2], sum(doubled)) % 10 == 0
