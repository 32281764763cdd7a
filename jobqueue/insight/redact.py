"""Values as pages may show them: secrets covered, the rest cut to a readable length."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from jobqueue.conf import settings

COVER = "••••••"
SHOWN_CHARACTERS = 4_000
DEEPEST = 40
# 13 to 19 digits, perhaps in groups: also found under an innocent key.
CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)")


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
            return text(value)
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
    names, rest = _names(signature)
    covered = [
        COVER if is_secret(names[position] if position < len(names) else rest) else redact(value)
        for position, value in enumerate(args)
    ]
    return covered, redact(kwargs)


def text(written: str) -> str:
    """Return a message, traceback or note with the secrets covered that can be told from it.

    Those are values written behind a secret's name (`password=…`, `"token": "…"`, a header's whole
    rest of the line), passwords in addresses, bearer tokens, and card numbers. Takes time in
    proportion to the length, whatever the text.
    """
    covered = ADDRESS.sub(rf"\1{COVER}", written)
    covered = BEARER.sub(rf"\1{COVER}", covered)
    if is_secret("authorization") or is_secret("cookie"):
        covered = HEADER.sub(rf"\1{COVER}", covered)
    if named := _named(settings().redact):
        covered = named.sub(_cover_named, covered)
    return CARD.sub(_cover_card, covered)


# Between a name and its value: = or : or =>, a blank before a quote, a comma in a list of pairs.
BETWEEN = r"""
    (?: \\?["']? [ \t]{0,8} (?: => | [:=]=? ) [ \t]{0,8}
      | [ \t]{1,8} (?= ["'] )
      | \\?["'] , [ \t]{0,8} (?= [bu]? \\?["'] ) )
"""
# Quoted (perhaps inside of a quoted text), opened by a bracket, or up to the next blank.
VALUE = r"""
    (?P<open> [bru]{0,2} (?P<quote> \\?["'] ) )
    (?: (?! (?P=quote) ) (?: \\. | [^\n] ) )* (?P=quote)?
  | [\[{(] [^\n]*
  | [^\s&"']+? (?= [\])}>,;.:"'\\]{0,4} (?: [\s&] | $ ) )
  | [^\s&]+
"""
ADDRESS = re.compile(r"(://[^\s:/@]{0,200}:)[^\s/@]{1,500}(?=@)")
BEARER = re.compile(r"(?i)(\b(?:bearer|basic)[ ]+)[\w.~+/=-]{16,}")
# A header's value may hold blanks: unless it is quoted, the rest of the line is covered.
HEADER = re.compile(r"(?i)((?:authorization|cookie)[ \t]{0,8}[:=][ \t]{0,8})[^\s\"'\\\[{(][^\n]*")


@lru_cache(maxsize=8)
def _named(keys: tuple[str, ...]) -> re.Pattern[str] | None:
    """What finds a secret's name with its value. Repetitions are bounded, or end where they fail:
    no text takes long."""
    if not (names := "|".join(re.escape(key) for key in keys if key)):
        return None
    return re.compile(rf"(?ix) (?P<lead> (?:{names}) [\w.-]{{0,40}} {BETWEEN} ) (?:{VALUE})")


def _cover_named(match: re.Match[str]) -> str:
    return f"{match['lead']}{match['open'] or ''}{COVER}{match['quote'] or ''}"


def pretty(value: Any, limit: int = SHOWN_CHARACTERS) -> tuple[str, bool]:
    """Return readable JSON of a redacted value, and whether it was cut."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False)
    return (text, False) if len(text) <= limit else (text[:limit], True)


def _names(signature: str) -> tuple[list[str], str]:
    """Return the positional parameters' names, and the name that any further value goes by."""
    names: list[str] = []
    for part in _split(signature.removeprefix("(").removesuffix(")")):
        name = part.partition("=")[0].strip()
        if name.startswith("*"):
            return names, name.strip("*")
        if name and name != "/":
            names.append(name)
    return names, ""


def _split(parameters: str) -> list[str]:
    """Split at the commas that part parameters, not at those within their defaults."""
    parts, depth, quote = [""], 0, ""
    for character in parameters:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and not depth:
            parts.append("")
            continue
        parts[-1] += character
    return parts


def _cover_card(match: re.Match[str]) -> str:
    return COVER if _is_card(match.group()) else match.group()


def _is_card(text: str) -> bool:
    digits = [int(character) for character in text if character.isdecimal()]
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [d * 2 - 9 * (d > 4) for d in digits[-2::-2]]
    return sum(digits[-1::-2], sum(doubled)) % 10 == 0
