"""The child's side of a supervisor: who started this process, and whether it still lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

SUPERVISOR = "JOBQUEUE_SUPERVISOR"
CHILD = "JOBQUEUE_CHILD"
PIPE = "JOBQUEUE_SUPERVISOR_PIPE"
RUNTIME = "JOBQUEUE_MAX_RUNTIME"  # what a replacement has left of --max-runtime
# A supervised child that wants to be replaced exits with one of these codes, which is no crash. The
# second: in drain mode, after a job died.
RECYCLED, RECYCLED_DIED = 10, 11


@dataclass(frozen=True, slots=True)
class SupervisorLink:
    """The supervisor of this process. Nothing is ever written to the pipe: it closes when the
    supervisor ends, for whatever reason."""

    id: str  # what Worker.supervisor holds
    child: int  # which of its children this is: 1, 2, …
    pipe: int
    max_runtime: float | None = None  # instead of the command line's

    async def gone(self) -> None:
        """Return when the supervisor has died; the child drains then."""
        ended = asyncio.Event()

        def read() -> None:
            with contextlib.suppress(BlockingIOError):
                if not os.read(self.pipe, 1):
                    ended.set()

        loop = asyncio.get_running_loop()
        os.set_blocking(self.pipe, False)
        loop.add_reader(self.pipe, read)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self.pipe)


def parent(environment: Mapping[str, str] = os.environ) -> SupervisorLink | None:
    """Return the supervisor of this process; None when it was started by hand."""
    if SUPERVISOR not in environment:
        return None
    pipe = int(environment[PIPE])
    os.set_inheritable(pipe, False)  # a program that a handler starts must not inherit it
    runtime = float(environment[RUNTIME]) if RUNTIME in environment else None
    return SupervisorLink(environment[SUPERVISOR], int(environment[CHILD]), pipe, runtime)
