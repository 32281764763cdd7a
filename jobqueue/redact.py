"""Values as any exit may show them: secrets covered, control characters made visible.

Pages, lists, searches, forms, the admin's log, log lines and commands all come through `cover` or
`cover_text`, and what goes to a terminal through `printable` too. Covering comes before any cut: a
cut could part a secret from the name that gives it away.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobqueue.conf import Settings, settings
from jobqueue.redact_patterns import (
    BEYOND_ASCII,
    CARD,
    INDENT,
    KNOWN_SECRETS,
    NAME,
    RUN,
    VALUE,
    WORD,
)
from jobqueue.stored_json import Unreadable

COVER = "••••••"
SHOWN_CHARACTERS = 4_000
MAX_DEPTH = 40
# An entry of a list of headers or settings: {"name": "Authorization", "value": "…"}.
NAME_KEYS = ("name", "key", "header")
VALUE_KEYS = ("value", "val", "values")
# On a command line, in a list: name:password.
USER_OPTIONS = ("-u", "--user", "--proxy-user")


def cover(value: Any, depth: int = 0) -> Any:
    """Return the JSON value with every secret covered: known by its key, its shape or its text."""
    if depth > MAX_DEPTH:
        return "…"
    match value:
        case Unreadable():
            return str(value)
        case dict():
            named = any(is_secret(value[key]) for key in value if str(key).casefold() in NAME_KEYS)
            return {
                key: COVER
                if is_secret(key) or (named and str(key).casefold() in VALUE_KEYS)
                else cover(inner, depth + 1)
                for key, inner in value.items()
            }
        case [str() as name, _] if is_secret(name):
            return [name, COVER]
        case list():
            return [
                _cover_option(before, inner) or cover(inner, depth + 1)
                for before, inner in zip([None, *value], value, strict=False)
            ]
        case str():
            return cover_text(value)
        case int() if not isinstance(value, bool) and _is_card(value):
            return COVER
        case _:
            return value


def _cover_option(before: Any, value: Any) -> str:
    """Return the covered value of an option of a command line that stands before it; empty where
    there is nothing to cover."""
    if not isinstance(before, str) or not isinstance(value, str):
        return ""
    if before in USER_OPTIONS and ":" in value:
        return f"{value.partition(':')[0]}:{COVER}"
    return COVER if before.startswith("-") and "=" not in before and is_secret(before) else ""


def cover_arguments(
    args: list[Any], kwargs: dict[str, Any], signature: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return both covered. A positional value goes by its parameter's name when it was stored;
    where that is not known (an empty or cut signature, more values than parameters), it is covered
    whatever it is."""
    if isinstance(args, Unreadable):
        return [str(args)], cover(kwargs)
    names, rest = _parameters(signature)
    going_by = [*names, *[rest] * len(args)]
    return [
        COVER if not name or is_secret(name) else cover(value)
        for name, value in zip(going_by, args, strict=False)
    ], cover(kwargs)


def cover_text(written: str) -> str:
    """Return a message, traceback or note with the secrets covered that it gives away.

    Those are values written after a secret's name (`password=…`, `"token": "…"`, a header's whole
    rest of the line), passwords in addresses and on command lines, keys and tokens of a well-known
    shape, and card numbers. Takes time in proportion to the length, whatever the text.
    """
    lowered = written.lower()
    for needles, pattern, replacement in KNOWN_SECRETS:
        if any(needle in lowered for needle in needles):
            written = pattern.sub(replacement.replace("COVER", COVER), written)
    return CARD.sub(_cover_card, _cover_named(written, listed_words()))


def terminal(text: object) -> str:
    """Return one line for a terminal: covered, then printable."""
    return printable(cover_text(str(text)))


def is_secret(name: object) -> bool:
    """Whether the value under this name must not be shown: one of its words is in REDACT.

    Words end at a change of case, at digits, and at `_`, `-` and `.`: `apiKey` holds `key`,
    `monkey` does not.
    """
    return isinstance(name, str) and _is_secret(name[-500:], listed_words())


def listed_words() -> frozenset[str]:
    """Return REDACT, folded; its default while the settings are wrong: a log line may say so."""
    try:
        return _folded(settings().redact)
    except ImproperlyConfigured:
        return _folded(Settings().redact)


@lru_cache(maxsize=4096)
def _is_secret(name: str, listed: frozenset[str]) -> bool:
    return any(word in listed or word.removesuffix("s") in listed for word in words(name))


@lru_cache(maxsize=8)
def _folded(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_fold(key) for key in keys)


def words(name: str) -> list[str]:
    """Split a name into its words, folded as they are compared."""
    return [_fold(word) for word in WORD.findall(unicodedata.normalize("NFKC", name))]


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _cover_named(written: str, listed: frozenset[str]) -> str:
    """Look at the names in which a listed word may be, each once."""
    parts, done, seen = [], 0, 0
    for start in _hits(written, listed):
        if start < seen:
            continue
        while start > seen and _is_of_name(written[start - 1]):
            start -= 1
        name = NAME.match(written, start)
        seen = RUN.match(written, start).end()  # type: ignore[union-attr]
        if name is None or (start and _is_of_name(written[start - 1])):  # or it began earlier
            continue
        if not _is_secret(name["name"][-500:], listed) or (
            _begins_line(written, start) and _is_class_name(name["name"], name["between"])
        ):
            continue
        if value := VALUE.match(written, name.end()):
            parts.append(written[done : name.end()])
            parts.append(f"{value['open'] or ''}{COVER}{value['quote'] or ''}")
            done = seen = value.end()
    return "".join(parts) + written[done:]


def _hits(written: str, listed: frozenset[str]) -> list[int]:
    """Return where a listed word may be; a letter beyond ASCII may stand for any."""
    found = [] if written.isascii() else [match.start() for match in BEYOND_ASCII.finditer(written)]
    folded = written.lower()
    if len(folded) != len(written):
        folded = "".join(each.lower() if each.isascii() else each for each in written)
    for word in listed:
        place = folded.find(word) if word.isascii() else -1
        while place >= 0:
            found.append(place)
            place = folded.find(word, place + 1)
    return sorted(found)


def _is_of_name(character: str) -> bool:
    return character.isalnum() or character in "_.-"


def _begins_line(written: str, start: int) -> bool:
    before = written[max(start - INDENT - 1, 0) : start]
    _, newline, indent = before.rpartition("\n")
    return not indent.strip(" \t") and bool(newline or start <= INDENT)


def _is_class_name(name: str, between: str) -> bool:
    """Whether this begins a traceback's last line: `KeyError:`, `shop.errors.TokenExpired:`. The
    last word of `ApiKey` or `AccessToken` names a secret instead, and a variable of the environment
    (`API_KEY_2: …`) has no letters of both cases, or has others."""
    last = name.rpartition(".")[2]
    parts = WORD.findall(last)
    is_class = last.isalpha() and last[0].isupper() and not last.isupper() and len(parts) > 1
    return is_class and between.strip() == ":" and not is_secret(parts[-1])


def _cover_card(match: re.Match[str]) -> str:
    return COVER if _is_card(match.group()) else match.group()


def _is_card(value: str | int) -> bool:
    """Whether the digits are as many as a payment card's and pass its check sum."""
    if isinstance(value, int) and not 10**12 <= value < 10**19:
        return False
    digits = [int(character) for character in str(value) if character.isdecimal()]
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [d * 2 - 9 * (d > 4) for d in digits[-2::-2]]
    return sum(digits[-1::-2], sum(doubled)) % 10 == 0


def pretty(value: Any, limit: int = SHOWN_CHARACTERS) -> tuple[str, bool]:
    """Return readable JSON of a covered value, and whether it was cut."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False)
    return (text, False) if len(text) <= limit else (text[:limit], True)


def printable(text: object) -> str:
    """Return one line of text that is safe on a terminal: control characters, line ends and
    direction marks are written out as escapes."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in str(text)
    )


def _parameters(signature: str) -> tuple[list[str], str]:
    """Return the positional parameters' names, and the name that any further value goes by; empty
    where none may follow."""
    names: list[str] = []
    parts = _split(signature.removeprefix("(").removesuffix(")"))
    if not signature.endswith(")"):
        parts.pop()  # cut, perhaps within the name
    for part in parts:
        name = part.partition("=")[0].strip()
        if name.startswith("*"):
            return names, name.strip("*")
        if name and name != "/":
            names.append(name)
    return names, ""


def _split(parameters: str) -> list[str]:
    """Split at the commas between parameters, not at those within their defaults."""
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
