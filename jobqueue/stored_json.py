"""JSON that the database accepts and Python cannot read, such as a number of 5,000 digits."""

from __future__ import annotations

import json
from typing import Any


class Unreadable(dict[str, Any]):
    """Stands for such a value: empty, so that whoever lists rows goes on, and says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = str(error)

    def __str__(self) -> str:
        return f"cannot be read: {self.error}"

    __repr__ = __str__


def read_stored(text: str) -> Any:
    """Return the value, or Unreadable."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unreadable(error)
