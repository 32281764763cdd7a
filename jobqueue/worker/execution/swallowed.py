"""Interrupts that landed where no exception gets out: a finalizer, a weak reference's callback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_watched = False


class Again:
    """An interrupt's part of its class: what to do when the interpreter has dropped it."""

    again: Callable[[], None]


def watch() -> None:
    """Have such interrupts sent again; everything else goes to the former hook."""
    global _watched
    if _watched:
        return
    former, _watched = sys.unraisablehook, True

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Again):
            unraisable.exc_value.again()
        else:
            former(unraisable)

    sys.unraisablehook = hook
