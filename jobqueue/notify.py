"""NOTIFY from the web side, through Django; a worker sends its own (store/notify.py)."""

import time
from collections.abc import Sequence
from math import inf
from typing import Any

from django.db import connections
from psycopg.pq import Escaping

from jobqueue.conf import settings
from jobqueue.logs import get_logger
from jobqueue.notifications import CHANNEL, Message, Ready, Scheduled, encode

# Its commit need not reach the disk: a server that crashes has lost its listeners too. Flushed, it
# would hold the lock that all notifications share for as long as the disk takes.
NOT_FLUSHED = b"SET LOCAL synchronous_commit TO off"
NOTIFY = b"SELECT pg_notify('" + CHANNEL.encode() + b"', %b)"
# A worker follows each round that a wake started with another one, later than this, which finds
# jobs committed in between without a wake of their own.
THIN_SECONDS = 0.005
# When each queue's last wake was sent, and its priority.
_latest: dict[tuple[str, str | None], tuple[float, int]] = {}
log = get_logger()


class Wake:
    """Sends the messages of a transaction, each once, right after its commit.

    Statements of their own: inside the transaction, NOTIFY's lock is held over the commit's flush
    and concurrent committers lose most of their speed.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.messages: dict[tuple[type, str | None], Message] = {}

    def add(self, message: Message) -> None:
        """Keep one message for each kind and addressee; of several moments the earliest."""
        key = (type(message), _addressee(message))
        match message, self.messages.get(key):
            case Scheduled(at), Scheduled(earlier):
                message = Scheduled(min(at, earlier))
            case Ready(queue, int(priority)), Ready(_, int(other)):
                message = Ready(queue, max(priority, other))
            case Ready(queue), Ready():
                message = Ready(queue)
        self.messages[key] = message

    def __call__(self) -> None:
        now = time.monotonic()
        messages = [m for m in self.messages.values() if not self._is_spared(m, now)]
        if not messages:
            return
        try:
            _send(self.alias, [encode(message) for message in messages])
        except Exception:
            # The jobs are committed; without the hint they wait for the next poll.
            _latest.clear()
            log.warning("wake_failed", exc_info=True)

    def _is_spared(self, message: Message, now: float) -> bool:
        """Whether a wake that this process has just sent covers this one."""
        if not isinstance(message, Ready) or message.priority is None:
            return False
        key, priority = (self.alias, message.queue), message.priority
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
    with wrapper.wrap_database_errors:  # a broken connection is not used again
        driver = wrapper.connection
        literal = Escaping(driver.pgconn).escape_literal
        statements = [NOTIFY % literal(payload.encode()) for payload in payloads]
        driver.execute(b"; ".join([NOT_FLUSHED, *statements]), prepare=False)


def _addressee(message: Message) -> str | None:
    return getattr(message, "queue", None) or getattr(message, "worker", None)


def notify(message: Message) -> None:
    """Send to the workers after the commit of the open transaction, or now when none is open."""
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
            hook.add(message)
            return
    wake = Wake(alias)
    wake.add(message)
    connection.on_commit(wake)
