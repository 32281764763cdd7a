"""Conversions to and from the database, where the driver's own take many times as long."""

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

_decode = json.JSONDecoder().raw_decode


def array(values: Iterable[int | str]) -> str:
    """Return an array as PostgreSQL writes it, for a parameter with a cast."""
    return f"{{{','.join(map(str, values))}}}"


def uuids(values: Iterable[UUID]) -> str:
    """Return an array of UUIDs, which PostgreSQL reads without hyphens too."""
    return f"{{{','.join([f'{value.int:032x}' for value in values])}}}"


def read_json(text: bytes | str) -> Any:
    """Read JSON written by the database: no whitespace around the value."""
    return _decode(text if isinstance(text, str) else text.decode())[0]
