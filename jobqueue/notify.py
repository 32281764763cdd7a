"""NOTIFY from the web side: a hint to workers, never the only carrier of news."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from math import inf
from typing import Any

import structlog
from django.db import connections
from psycopg.pq import Escaping

from jobqueue.conf import settings

CHANNEL = "jobqueue"
# Its commit need not reach the disk: a server that crashes has lost its listeners too. Flushed, it
# would hold the lock that all notifications share for as long as the disk takes.
NOT_FLUSHED = b"SET LOCAL synchronous_commit TO off"
NOTIFY = b"SELECT pg_notify('" + CHANNEL.encode() + b"', %b)"
# Each worker follows a round that a wake brought about with one more, later than this: it sees what
# was committed in between without a wake of its own.
THIN_SECONDS = 0.005
# When each queue's last wake was sent, and its priority.
_latest: dict[tuple[str, str], tuple[float, int]] = {}
log = structlog.get_logger("jobqueue")


class Wake:
    """Sends what a transaction has to tell, once, right after its commit.

    Statements of their own: inside the transaction, NOTIFY's lock is held over the commit's flush
    and concurrent committers lose most of their speed.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.news: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, kind: str, facts: dict[str, Any]) -> None:
        """One message for each kind and addressee; of several moments the earliest."""
        key = (kind, facts.get("queue") or facts.get("worker", ""))
        if earlier := self.news.get(key):
            if "at" in facts:
                facts["at"] = min(facts["at"], earlier["at"])
            if "priority" in facts and "priority" in earlier:
                facts["priority"] = max(facts["priority"], earlier["priority"])
            else:
                facts.pop("priority", None)
        self.news[key] = {"kind": kind, **facts}

    def __call__(self) -> None:
        now = time.monotonic()
        messages = [message for message in self.news.values() if not self._is_spared(message, now)]
        if not messages:
            return
        try:
            _send(self.alias, [json.dumps(message, separators=(",", ":")) for message in messages])
        except Exception:
            # The jobs are committed; without the hint they wait for the next poll.
            _latest.clear()
            log.warning("wake_failed", exc_info=True)

    def _is_spared(self, message: dict[str, Any], now: float) -> bool:
        """Whether a wake that this process has sent just before does for this one too."""
        if "priority" not in message:
            return False
        key, priority = (self.alias, message["queue"]), message["priority"]
        sent_at, sent_priority = _latest.get(key, (-inf, 0))
        if now - sent_at < THIN_SECONDS and priority <= sent_priority:
            return True
        _latest[key] = (now, priority)
        return False


def _send(alias: str, payloads: Sequence[str]) -> None:
    """All in one round trip, on the driver's connection: through Django's cursor a wake takes this
    process longer than the server. So it is no query that Django logs or counts."""
    wrapper: Any = connections[alias]
    wrapper.ensure_connection()
    with wrapper.wrap_database_errors:  # a connection that broke is not used again
        driver = wrapper.connection
        literal = Escaping(driver.pgconn).escape_literal
        news = [NOTIFY % literal(payload.encode()) for payload in payloads]
        driver.execute(b"; ".join([NOT_FLUSHED, *news]), prepare=False)


def tell_ready(queue: str, priority: int | None = None) -> None:
    """A job of this queue can be claimed; with a priority it is a new one."""
    if priority is None:
        tell("ready", queue=queue)
    else:
        tell("ready", queue=queue, priority=priority)


def tell_scheduled(run_at: datetime) -> None:
    """A job falls due at this moment: for the leader, who promotes."""
    tell("scheduled", at=run_at.timestamp())


def tell(kind: str, **facts: Any) -> None:
    """Tell the workers after the commit of the open transaction, or now when none is open."""
    if not settings().notify:
        return
    alias = settings().database
    connection = connections[alias]
    if not connection.in_atomic_block and not connection.get_autocommit():
        return  # Django does not see this transaction's commit: the next poll finds the job
    hooks: Any = connection.run_on_commit  # the stubs know two of its three columns
    # A hook that is still registered is dropped only together with the rows of this call: its
    # savepoints are released ones, or open ones around this statement.
    for _, hook, _ in reversed(hooks):
        if isinstance(hook, Wake):
            hook.add(kind, facts)
            return
    wake = Wake(alias)
    wake.add(kind, facts)
    connection.on_commit(wake)
