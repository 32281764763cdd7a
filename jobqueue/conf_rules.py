"""What the value of a setting may be. A rule returns what to write instead of a refused one."""

from collections.abc import Callable, Mapping
from typing import Any

from jobqueue.exceptions import MAX_DELAY_SECONDS

Rule = Callable[[Any], str | None]  # what to write instead of a refused value, else None


def number(*, low: float, exclusive: bool = False, none: bool = False) -> Rule:
    start = f"above {low:g}" if exclusive else f"from {low:g}"
    wish = f"a number of seconds {start} to {MAX_DELAY_SECONDS} (ten years)"
    if none:
        wish += ", or None"

    def rule(value: Any) -> str | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return wish
        good = low <= value <= MAX_DELAY_SECONDS and not (exclusive and value == low)
        return None if good else wish

    return rule


def whole(low: int, high: int) -> Rule:
    def rule(value: Any) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"a whole number from {low} to {high}"

    return rule


def retention(value: Any) -> str | None:
    wish = "a dict from SUCCEEDED, CANCELLED, DEAD and ACTS to seconds, or to None to keep them"
    if not isinstance(value, Mapping) or set(value) - {"SUCCEEDED", "CANCELLED", "DEAD", "ACTS"}:
        return wish
    return wish if any(number(low=0, none=True)(seconds) for seconds in value.values()) else None


def redact(value: Any) -> str | None:
    good = isinstance(value, list | tuple) and all(isinstance(i, str) and i for i in value)
    return None if good else "a list of words; a value whose name holds one of them is not shown"


def operator_tasks(value: Any) -> str | None:
    wish = 'None, or a list of dotted paths of tasks, or ["*"] for every one of the installed apps'
    if value is None:
        return None
    good = isinstance(value, list | tuple) and all(isinstance(i, str) for i in value)
    return None if good and all(i == "*" or i.rpartition(".")[0] for i in value) else wish


def address(value: Any) -> str | None:
    """Where a probe listens; a port alone means the loopback."""
    if value is None:
        return None
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", ":", "")
    good = port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= 65535
    good = good and bool(host or not colon)
    return None if good else 'None, an address such as "127.0.0.1:9000", or a port such as "9000"'
