"""Django's connections in a handler thread: healthy before a handler, reset after it."""

from __future__ import annotations

import contextlib
import re
import select
from collections.abc import Callable
from typing import Any

from django.db import connections
from psycopg.errors import FeatureNotSupported, ReadOnlySqlTransaction
from psycopg.pq import TransactionStatus

from jobqueue.logs import get_logger

log = get_logger()

# Statements whose effect outlives the transaction and would reach the next handler.
_AT_START = (
    r"(?:set\s+(?!local\b|constraints\b|transaction\b)|reset\b|listen\b|prepare\b|declare\b|load\b"
    r"|create\s+(?:(?:local|global)\s+)?temp)"
)
_SESSION = re.compile(rf"\s*{_AT_START}", re.IGNORECASE)
_ANYWHERE = re.compile(
    rf"set_config\s*\(|pg_(?:try_)?advisory_(?!xact)|;\s*{_AT_START}", re.IGNORECASE
)
_WORDS = (";", "set_config", "advisory")
_COMPOSED = re.compile(rf"['\"]\s*{_AT_START}", re.IGNORECASE)  # in the repr of psycopg's SQL


class Watch:
    """Django's `execute_wrapper` of one connection: inspects every statement."""

    def __init__(self) -> None:
        self.session_changed = False

    def __call__(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
    ) -> Any:
        if not self.session_changed:
            self.session_changed = changes_session(sql)
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            # After a failover the session may still be on the server that is now a standby; after a
            # migration what it has prepared may return other types.
            if isinstance(error.__cause__, ReadOnlySqlTransaction | FeatureNotSupported):
                self.session_changed = True
            raise


def changes_session(sql: Any) -> bool:
    """Whether this statement may leave something in its session."""
    if not isinstance(sql, str):
        sql = repr(sql)
        if _COMPOSED.search(sql):
            return True
    if _SESSION.match(sql):
        return True
    lower = sql.lower()  # the search is slow, and few statements need it
    return any(word in lower for word in _WORDS) and bool(_ANYWHERE.search(lower))


def refresh_connections() -> list[Any]:
    """Close the connections that the server has ended, or that are too old; return all wrappers.
    This makes no round trip, so Django's own health check is still useful."""
    wrappers: list[Any] = list(connections.all())
    for wrapper in wrappers:
        if not any(isinstance(watch, Watch) for watch in wrapper.execute_wrappers):
            wrapper.execute_wrappers.append(Watch())
        if wrapper.connection is None:
            continue
        wrapper.health_check_done = False
        if _ended_by_server(wrapper.connection):
            _discard(wrapper)
        elif wrapper.settings_dict.get("CONN_MAX_AGE"):
            # Zero means "close after each request"; a handler thread closes it when idle instead.
            wrapper.close_if_unusable_or_obsolete()
    return list(connections.all())


def _ended_by_server(raw: Any) -> bool:
    if getattr(raw, "closed", False):
        return True
    try:
        descriptor = raw.fileno()
    except Exception:
        return True
    poll = select.poll()  # select.select ends at descriptor 1023
    poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))  # an idle session has nothing to say but that it ends


def tidy_connections() -> None:
    """Let nothing of one handler's transactions or sessions reach the next one."""
    for wrapper in connections.all(initialized_only=True):
        wrapper.queries_log.clear()
        if not _is_clean(wrapper):
            if _is_in_transaction(wrapper):
                log.warning("transaction_left_open", database=wrapper.alias)
            _discard(wrapper)
        elif wrapper.connection is not None and getattr(wrapper, "pool", None):
            wrapper.close()  # back to the pool, for the threads waiting for one


def _is_in_transaction(wrapper: Any) -> bool:
    """Whether something may be lost that the handler believes to be written."""
    raw = wrapper.connection
    if raw is None or wrapper.vendor != "postgresql":
        return False
    return bool(raw.info.transaction_status == TransactionStatus.INTRANS)


def close_dropped(wrappers: list[Any]) -> None:
    """Close the sessions of wrappers that a handler took out of `connections` (`del`): nobody else
    would, and they keep their locks."""
    kept = connections.all(initialized_only=True)
    for wrapper in wrappers:
        if wrapper.connection is not None and not any(wrapper is each for each in kept):
            with contextlib.suppress(Exception):
                wrapper.connection.close()


def _is_clean(wrapper: Any) -> bool:
    raw = wrapper.connection
    if wrapper.in_atomic_block or wrapper.needs_rollback or wrapper.closed_in_transaction:
        return False
    if any(getattr(watch, "session_changed", False) for watch in wrapper.execute_wrappers):
        return False
    if raw is None:
        return True
    if not wrapper.autocommit or wrapper.vendor != "postgresql" or raw.closed:
        return False
    return bool(raw.info.transaction_status == TransactionStatus.IDLE)


def discard_connections() -> None:
    """Close every connection, whatever its state."""
    for wrapper in connections.all(initialized_only=True):
        _discard(wrapper)


def _discard(wrapper: Any) -> None:
    """Close the session itself, so that a pool cannot hand it on, and drop the wrapper: closing
    inside an atomic block leaves the wrapper in it."""
    if wrapper.connection is not None:
        with contextlib.suppress(Exception):
            wrapper.connection.close()
    wrapper.in_atomic_block, wrapper.savepoint_ids, wrapper.run_on_commit = False, [], []
    with contextlib.suppress(Exception):
        wrapper.close()
    with contextlib.suppress(AttributeError):
        del connections[wrapper.alias]


def forget_connections() -> None:
    """Called in a forked child: the sessions are the parent's, and not a byte may be sent."""
    for wrapper in connections.all(initialized_only=True):
        getattr(wrapper, "_connection_pools", {}).clear()
        with contextlib.suppress(AttributeError):
            del connections[wrapper.alias]


def running_queries(wrappers: list[Any]) -> list[Any]:
    """Called from any thread: return the psycopg connections that are running a query now."""
    found = []
    for wrapper in wrappers:
        raw = wrapper.connection
        if raw is None or wrapper.vendor != "postgresql" or raw.closed:
            continue
        if raw.info.transaction_status == TransactionStatus.ACTIVE:
            found.append(raw)
    return found
