"""How long a lost job waits: by its task's own rule, which is the project's code.

The rule runs in a thread, as handlers do, with healthy connections and a bound: never on the
leader's loop, never inside its transaction.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from jobqueue import tasks
from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.store.reclaims import Lapsed, Verdict
from jobqueue.worker.threads.handler_thread import HandlerThread

RULE_SECONDS = 1.0  # for one rule; after that the default applies
BATCH_SECONDS = 2.0  # rules not asked by then wait for the next batch
log = get_logger()


class RetryRules:
    """Asks the rules in turn."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._thread: HandlerThread | None = None

    async def verdicts(self, rows: Sequence[Lapsed]) -> list[Verdict]:
        """Return the rows with their delays; at least one, and as many as fit into the time."""
        end = loop_time() + BATCH_SECONDS
        found: list[Verdict] = []
        for row in rows:
            if found and loop_time() > end:
                break
            found.append(Verdict(row.id, row.token, await self._delay(row)))
        return found

    async def _delay(self, row: Lapsed) -> float:
        task = tasks.known(row.task)
        if row.options == "{}" and task is not None and "backoff" not in tasks.options_of(task):
            return self._default(row)
        if self._thread is None:
            self._thread = HandlerThread("retry-rules")
        asked = asyncio.wrap_future(self._thread.submit(self._ask, self._thread, row))
        done, _ = await asyncio.wait({asked}, timeout=RULE_SECONDS)
        if done and (error := asked.exception()) is None:
            return float(asked.result())
        if not done:  # the thread is abandoned to its call; another one asks the next rule
            error = TimeoutError(f"no answer within {RULE_SECONDS:g} s")
            self.close()
        log.warning("backoff_failed", job=row.id, task=row.task, exc_info=error)
        return self._default(row)

    def _ask(self, thread: HandlerThread, row: Lapsed) -> float:
        thread.prepare()
        try:
            rule = json.loads(row.options).get("backoff", tasks.UNSET)
            if rule is tasks.UNSET:
                rule = _declared_rule(row.task)
            return tasks.retry_delay(rule, row.failures + 1, self.settings)
        finally:
            thread.tidy()

    def _default(self, row: Lapsed) -> float:
        return tasks.retry_delay(None, row.failures + 1, self.settings)

    def close(self) -> None:
        """End the thread after its last call."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None


def _declared_rule(path: str) -> Any:
    try:
        return tasks.options_of(tasks.resolve(path)).get("backoff")
    except tasks.UnknownTask:
        return None
