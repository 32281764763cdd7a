"""What connections are opened with: asked afresh for each, since credentials may rotate.

How they are found is the project's code (a database engine that fetches a token, say), often a call
through the network. So it runs in a thread, bounded, one call at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from jobqueue.store.error_classes import ParametersUnavailable


class ConnectionParameters:
    """Shared by all sessions of a process. `ask` is called in a thread for each new connection."""

    def __init__(self, ask: Callable[[], dict[str, Any]]) -> None:
        self._ask = ask
        self.known: dict[str, Any] | None = None  # the last answer
        self._pending: Future[dict[str, Any]] | None = None

    @classmethod
    def fixed(cls, parameters: dict[str, Any]) -> ConnectionParameters:
        """Parameters that never change."""
        fixed = cls(lambda: parameters)
        fixed.known = parameters
        return fixed

    async def ask(self, seconds: float) -> dict[str, Any]:
        """Return the answer of now. Raises ParametersUnavailable where none comes in time; a call
        that is still running is waited for by the next one."""
        if self._pending is None or self._pending.done():
            self._pending = Future()
            arguments = (self._pending,)
            threading.Thread(
                target=self._run, args=arguments, name="jobqueue-parameters", daemon=True
            ).start()
        answer = asyncio.wrap_future(self._pending)
        done, _ = await asyncio.wait({answer}, timeout=seconds)
        if not done:
            raise ParametersUnavailable(
                f"The database's connection parameters were not found within {seconds:.1f} s."
            )
        if (error := answer.exception()) is not None:
            raise ParametersUnavailable(
                f"The database's connection parameters were not found: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.known = answer.result()
        return self.known

    def _run(self, future: Future[dict[str, Any]]) -> None:
        try:
            future.set_result(self._ask())
        except BaseException as error:  # also what leaves the thread by SystemExit
            future.set_exception(error)
