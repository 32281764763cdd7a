"""What may be stored as JSON: arguments, results and progress."""

import inspect
import json
from collections import UserString
from collections.abc import Mapping, Sequence
from typing import Any

from jobqueue import redact

MAX_DEPTH = 100
# Python refuses to format integers of more than 4,300 digits.
MAX_BITS = 14_000


class NotJSON(ValueError, TypeError):
    """A value that JSON cannot hold, with its path. Both classes, since Django's own backends raise
    one or the other."""


def encode(value: Any, where: str, max_bytes: int, setting: str) -> str:
    """Return the value as JSON text. Raises NotJSON naming the path, or the limit's setting.

    Tuples and other sequences become lists and mappings dictionaries, as in Django's own tasks;
    everything else comes back equal.
    """
    if value is None:  # what most tasks return
        return "null"
    value = _plain(value, where, 0, max_bytes)
    text = _dumps(value)
    if "e+" in text:
        text = _dumps(_exact(value))
    size = size_of(text)
    if size > max_bytes:
        raise NotJSON(
            f"{where} takes {size} bytes as JSON; {setting} allows {max_bytes}. "
            "Store the data elsewhere and pass its key."
        )
    return text


def size_of(text: str) -> int:
    """Return how many bytes it takes."""
    return len(text) if text.isascii() else len(text.encode())


def encode_result(value: Any, max_bytes: int) -> str:
    """Return what a handler returned as JSON text. Raises NotJSON."""
    try:
        return encode(value, "result", max_bytes, "RESULT_MAX_BYTES")
    except NotJSON as error:
        raise _unrun(value) or error from None


def _unrun(value: Any) -> NotJSON | None:
    """A clearer message for a coroutine, generator or other work not yet run."""
    if not (inspect.isawaitable(value) or inspect.isasyncgen(value) or inspect.isgenerator(value)):
        return None
    if inspect.iscoroutine(value):
        value.close()
    return NotJSON(f"the task returned a {type(value).__name__}, which nobody has run.")


_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _exact(value: Any) -> Any:
    """Return the value with its large floats as integers.

    PostgreSQL stores 1e+23 as a one and 23 zeros, which is another number than the float.
    """
    match value:
        case float() if abs(value) >= 1e16:
            return int(value)
        case list() | tuple():
            return [_exact(item) for item in value]
        case dict():
            return {key: _exact(item) for key, item in value.items()}
    return value


def _plain(value: Any, where: str, depth: int, most: int) -> Any:
    """Return the value, or a copy if it contains mappings or sequences other than dict and list.
    Raises NotJSON."""
    match value:
        case None | bool():
            return value
        case str():
            _check_text(value, where)
        case int():
            if value.bit_length() > MAX_BITS:
                raise NotJSON(f"{where} is a whole number of more than {MAX_BITS} bits.")
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise NotJSON(f"{where} is {value}, which JSON does not know.")
        case list() | tuple() | dict() if depth >= MAX_DEPTH:
            raise NotJSON(f"{where} is nested deeper than {MAX_DEPTH} levels, or contains itself.")
        case list() | tuple():
            return _plain_items(value, where, depth, most)
        case dict():
            return _plain_dict(value, where, depth, most)
        case bytes() | bytearray() | memoryview() | UserString():
            raise NotJSON(f"{where} is of type {type(value).__name__}. {_advice(value)}")
        # A range, for instance, takes no space itself.
        case Mapping() | Sequence() if len(value) > most:
            raise NotJSON(f"{where} has {len(value)} items, more than fit into {most} bytes.")
        case Mapping():
            return _plain(dict(value.items()), where, depth, most)
        case Sequence():
            return _plain(list(value), where, depth, most)
        case _:
            raise NotJSON(f"{where} is of type {type(value).__name__}. {_advice(value)}")
    return value


def _plain_items(value: list[Any] | tuple[Any, ...], where: str, depth: int, most: int) -> Any:
    changed: list[Any] | None = None
    for position, item in enumerate(value):
        plain = _plain(item, f"{where}[{position}]", depth + 1, most)
        if plain is not item:
            changed = list(value) if changed is None else changed
            changed[position] = plain
    return value if changed is None else changed


def _plain_dict(value: dict[Any, Any], where: str, depth: int, most: int) -> dict[Any, Any]:
    changed: dict[Any, Any] | None = None
    for key, item in value.items():
        if not isinstance(key, str):
            raise NotJSON(
                f"{where} has the key {key!r} of type {type(key).__name__}; JSON keys are strings."
            )
        _check_text(key, f"the key {key!r} of {where}")
        plain = _plain(item, f"{where}[{key!r}]", depth + 1, most)
        if plain is not item:
            changed = dict(value) if changed is None else changed
            changed[key] = plain
    return value if changed is None else changed


def _check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise NotJSON(f"{where} contains a NUL character, which PostgreSQL cannot store.")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJSON(f"{where} contains half a surrogate pair, which is not text.") from None


def _advice(value: Any) -> str:
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return "Pass its primary key and load it in the task."
    if hasattr(value, "isoformat"):
        return "Pass value.isoformat()."
    if isinstance(value, bytes | bytearray | memoryview):
        return "Pass text, or base64 of it."
    if isinstance(value, set | frozenset):
        return "Pass a sorted list."
    return "Pass str(value), or what the task can build it from."


# What is read of a text that is cut, on each side, in units of what is kept: a secret that begins
# before it would have to be as long.
READ = 4


def clean(text: str, limit: int) -> str:
    """Return text that PostgreSQL can store: no NUL, no half surrogates, at most `limit` long.

    What is cut is covered first: a cut could part a secret from its name.
    """
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    length = len(text)
    if length <= limit:
        return text
    if length > 2 * READ * limit:
        text = f"{text[: READ * limit]}\n…\n{text[-READ * limit :]}"
    text, half = redact.cover_text(text), (limit - 40) // 2
    if len(text) <= limit:
        return text
    return f"{text[:half]}\n… {length - 2 * half} characters left out …\n{text[-half:]}"
