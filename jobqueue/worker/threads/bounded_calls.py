"""The project's code, called for a service: in a thread of its own, one call at a time, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobqueue.worker.threads.handler_thread import HandlerThread


class BoundedCalls:
    """Makes such calls for one service, never on its loop and with healthy connections."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread: HandlerThread | None = None

    async def call[T](self, function: Callable[[], T], seconds: float) -> T:
        """Return what the function returns. Raises TimeoutError after `seconds`: the thread is left
        to the call, and the next one gets another thread."""
        if self._thread is None:
            self._thread = HandlerThread(self.name)
        asked = asyncio.wrap_future(self._thread.submit(_in_thread, self._thread, function))
        try:
            done, _ = await asyncio.wait({asked}, timeout=seconds)
        except asyncio.CancelledError:
            self.close()
            raise
        if done:
            return asked.result()  # type: ignore[no-any-return]
        self.close()
        raise TimeoutError(f"no answer within {seconds:g} s")

    def close(self) -> None:
        """End the thread after its last call."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None


def _in_thread[T](thread: HandlerThread, function: Callable[[], T]) -> T:
    thread.prepare()
    try:
        return function()
    except Exception:
        raise
    except BaseException as error:  # of the project's code, not of the service that waits
        raise RuntimeError(f"the call raised {error!r}") from error
    finally:
        thread.tidy()
