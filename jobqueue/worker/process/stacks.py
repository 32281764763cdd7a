"""Stacks of threads and tasks as text: names and places, never arguments or locals."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any

from jobqueue.worker.inflight import InFlight

DEPTH = 30


def of_thread(ident: int | None) -> str:
    """Return a thread's current stack; empty if it has ended."""
    frame = sys._current_frames().get(ident or 0)
    return "" if frame is None else _text(frame)


def _text(frame: FrameType) -> str:
    return "".join(traceback.format_list(traceback.extract_stack(frame)[-DEPTH:]))


def of_task(task: asyncio.Task[Any]) -> str:
    """Return the stack of a waiting task, innermost frame last."""
    frames: list[traceback.FrameSummary] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < DEPTH:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            place = traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)
            frames.append(place)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return "".join(traceback.format_list(frames))


def of_handler(inflight: InFlight) -> str:
    """Return a handler's stack, in its own thread or on the loop, and those of its calls in the
    default executor."""
    parts = [] if inflight.task is None else [of_task(inflight.task)]
    if inflight.handler_thread is not None and inflight.handler_thread.pending:
        parts = [of_thread(inflight.handler_thread.thread.ident)]
    for thread in [] if inflight.calls is None else inflight.calls.threads():
        parts.append(f"Thread {thread.thread.name}:\n{of_thread(thread.thread.ident)}")
    return "\n".join(parts)


def everything(loop: asyncio.AbstractEventLoop | None) -> str:
    """Return the stacks of every thread, and of every task of the loop."""
    parts = [
        f"Thread {thread.name}:\n{of_thread(thread.ident)}" for thread in threading.enumerate()
    ]
    parts += [f"Task {task.get_name()}:\n{of_task(task)}" for task in _tasks(loop)]
    return "\n".join(parts)


def _tasks(loop: asyncio.AbstractEventLoop | None) -> Iterable[asyncio.Task[Any]]:
    if loop is None:
        return []
    for _ in range(5):  # the set may change during the iteration
        try:
            return asyncio.all_tasks(loop)
        except RuntimeError:
            continue
    return []
