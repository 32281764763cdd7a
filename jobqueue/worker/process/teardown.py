"""What may be left after the last log line: tasks on the loop, and handlers' threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

from jobqueue.logs import get_logger

UNWIND_SECONDS = 0.5
JOIN_SECONDS = 0.2
log = get_logger()


class Threads:
    """The threads for which the interpreter's end would wait, beyond those known at the start."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def are_left(self) -> bool:
        """Whether there are any. A pool's idle threads, just asked to end, get a moment."""
        end = time.monotonic() + JOIN_SECONDS
        left = [t for t in threading.enumerate() if not t.daemon and t not in self._before]
        for thread in left:
            thread.join(max(end - time.monotonic(), 0))
        return any(thread.is_alive() for thread in left)


def run_through[T](
    loop: asyncio.AbstractEventLoop, story: asyncio.Task[T], *, hears_signals: bool
) -> T:
    """Run the loop until this coroutine ends, and return its result. A callback that a handler gave
    to the loop can stop it by SystemExit or KeyboardInterrupt (a real signal arrives elsewhere);
    then the loop is run again."""
    contained = (SystemExit, KeyboardInterrupt) if hears_signals else (SystemExit,)
    while True:
        try:
            return loop.run_until_complete(story)
        except contained:
            if story.done():
                raise
            log.exception("loop_callback_exited")


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """End the tasks left on the loop. A handler's threads in its default executor are not awaited:
    the command ends the process without them."""
    with contextlib.suppress(RuntimeError):
        loop.run_until_complete(_end_tasks())
    loop.close()


async def _end_tasks() -> None:
    """Cancel, and await for a moment: a handler may ignore it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    generators = asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens())
    await asyncio.wait({generators, *left}, timeout=UNWIND_SECONDS)
