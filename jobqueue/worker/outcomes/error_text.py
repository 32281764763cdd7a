"""A handler's error as bounded text, whatever its class does when inspected."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from jobqueue.payload import clean

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000
CHAIN_LIMIT = 20
_OWN_FOLDER = str(Path(__file__).parents[1])  # the worker's


def path_of(error: BaseException) -> str:
    """Return the dotted path of an error's class."""
    try:
        kind = type(error)
        return clean(f"{kind.__module__}.{kind.__qualname__}", 500)
    except BaseException:
        return "builtins.BaseException"


def message_of(error: BaseException) -> str:
    """Return an exception's text, bounded, even if it cannot be printed."""
    try:
        return clean(str(error), MESSAGE_LIMIT)
    except BaseException as broken:
        return f"<the message cannot be shown: {type(broken).__name__}>"


def traceback_of(error: BaseException) -> str:
    """Return the traceback as text: the chain and groups bounded, no local variables."""
    try:
        shown = _shortened(error)
        rendered = traceback.TracebackException(
            type(shown),
            shown,
            without_own_frames(shown.__traceback__),
            limit=-40,
            max_group_width=10,
            max_group_depth=5,
            compact=True,
        )
        parts, size = [], 0
        for line in rendered.format():
            parts.append(line)
            size += len(line)
            if size > 8 * TRACEBACK_LIMIT:
                break
        return clean("".join(parts), TRACEBACK_LIMIT)
    except BaseException as broken:
        return f"<the traceback cannot be shown: {type(broken).__name__}>"


def _shortened(error: BaseException) -> BaseException:
    """Cut a chain of thousands, which would take seconds to render, after its newest errors."""
    last = error
    for _ in range(CHAIN_LIMIT):
        following = last.__cause__ or last.__context__
        if following is None:
            return error
        last = following
    last.__cause__ = last.__context__ = None
    return error


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the worker's own frames above the handler's."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        inner = inner.tb_next
    return inner or trace


def related(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it: causes, contexts, members of groups."""
    seen: set[int] = set()
    left = [error]
    while left and len(seen) < 1_000:
        current = left.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        left += filter(None, (current.__context__, current.__cause__))
        if isinstance(current, BaseExceptionGroup):
            left += current.exceptions


def forget(error: BaseException) -> None:
    """Clear the local variables in the frames of an error that nobody will read again: a cycle
    through them would keep a handler's data until the next garbage collection."""
    for each in related(error):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
