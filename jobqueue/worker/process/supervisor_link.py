"""The child's side of a supervisor: who started this process, and whether it still lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from uuid import UUID

SUPERVISOR = "JOBQUEUE_SUPERVISOR"
CHILD = "JOBQUEUE_CHILD"
PIPE = "JOBQUEUE_SUPERVISOR_PIPE"
WORKER = "JOBQUEUE_WORKER"  # the identity that it is to register under
RUNTIME = "JOBQUEUE_MAX_RUNTIME"  # what a replacement has left of --max-runtime
WORDS = (SUPERVISOR, CHILD, PIPE, WORKER, RUNTIME)
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
    worker: UUID
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


def parent(environment: MutableMapping[str, str] = os.environ) -> SupervisorLink | None:
    """Return the supervisor of this process; None when it was started by hand. Its words are taken
    out of the environment: a program that a handler starts is not the supervisor's child."""
    given = {name: environment.pop(name, "") for name in WORDS}
    if not given[SUPERVISOR]:
        return None
    pipe = int(given[PIPE])
    os.set_inheritable(pipe, False)
    return SupervisorLink(
        given[SUPERVISOR],
        int(given[CHILD]),
        pipe,
        UUID(given[WORKER]),
        float(given[RUNTIME]) if given[RUNTIME] else None,
    )
