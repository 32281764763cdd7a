"""How long a lost job waits: by its task's own rule, which is the project's code.

The rule runs in a thread, as handlers do, with healthy connections and a bound: never on the
leader's loop, never inside its transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from jobqueue import tasks
from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.store.reclaims import Lapsed, Verdict
from jobqueue.worker.threads.bounded_calls import BoundedCalls

RULE_SECONDS = 1.0  # for one rule; after that the default applies
BATCH_SECONDS = 2.0  # rules not asked by then wait for the next batch
log = get_logger()


class RetryRules:
    """Asks the rules in turn."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._calls = BoundedCalls("retry-rules")

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
        try:
            return await self._calls.call(partial(self._ask, row), RULE_SECONDS)
        except Exception as error:
            log.warning("backoff_failed", job=row.id, task=row.task, exc_info=error)
            return self._default(row)

    def _ask(self, row: Lapsed) -> float:
        rule = json.loads(row.options).get("backoff", tasks.UNSET)
        if rule is tasks.UNSET:
            rule = _declared_rule(row.task)
        return tasks.retry_delay(rule, row.failures + 1, self.settings)

    def _default(self, row: Lapsed) -> float:
        return tasks.retry_delay(None, row.failures + 1, self.settings)

    def close(self) -> None:
        """End the thread after its last call."""
        self._calls.close()


def _declared_rule(path: str) -> Any:
    try:
        return tasks.options_of(tasks.resolve(path)).get("backoff")
    except tasks.UnknownTask:
        return None
