"""The transaction of an atomic handler, marked at the server, so that its end is recognised."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from uuid import UUID

from django.db import OperationalError, connections
from django.db.transaction import TransactionManagementError
from psycopg import Connection, errors, generators
from psycopg.pq import ExecStatus, TransactionStatus

from jobqueue.store.finish import Written
from jobqueue.worker.outcomes.classify import NoConnection

GONE = (
    "The transaction in which this atomic task began has ended before it: the handler, or what it "
    "called, has committed it, rolled it back or left its connection. "
    "Use transaction.atomic() around what may be rolled back, and nothing else"
)


class OwnTransaction:
    """Begins the transaction of the open atomic block, and knows it again.

    The mark is a setting of this transaction alone. It goes out in one message with BEGIN, which
    the driver would otherwise send before the first query, so that it costs no round trip.
    """

    def __init__(self, alias: str, token: UUID) -> None:
        self.alias, self.token = alias, str(token)
        self._wrapper: Any = connections[alias]
        self._raw: Connection[Any] = self._wrapper.connection
        try:
            with self._wrapper.wrap_database_errors:
                self._raw.wait(self._begin())
        except OperationalError as error:  # the handler has not begun
            raise NoConnection(str(error)) from error

    def _begin(self) -> Generator[Any, Any]:
        message = f"{_begin_statement(self._raw)}; SET LOCAL jobqueue.attempt = '{self.token}'"
        self._raw.pgconn.send_query(message.encode())
        for result in (yield from generators.execute(self._raw.pgconn)):
            if result.status != ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result)

    def connection(self) -> Any:
        """Return Django's connection, as long as it is in some transaction still."""
        wrapper: Any = connections[self.alias]
        raw = self._raw
        left = wrapper is not self._wrapper or wrapper.connection is not raw
        closed = raw.closed and not raw.broken  # by the handler, and not by the network
        # From IDLE on a statement would begin another one.
        if left or closed or raw.info.transaction_status == TransactionStatus.IDLE:
            raise TransactionManagementError(GONE)
        return wrapper

    def check(self, written: Written) -> None:
        """Whether that statement ran in this very transaction."""
        if written.mark != self.token:
            raise TransactionManagementError(GONE)


def _begin_statement(raw: Connection[Any]) -> str:
    """What the driver would send for this connection."""
    words = ["BEGIN"]
    if raw.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {raw.isolation_level.name.replace('_', ' ')}")
    if raw.read_only is not None:
        words.append("READ ONLY" if raw.read_only else "READ WRITE")
    if raw.deferrable is not None:
        words.append("DEFERRABLE" if raw.deferrable else "NOT DEFERRABLE")
    return " ".join(words)
