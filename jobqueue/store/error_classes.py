"""What an error of the database means: transient, a refused login, or refused data."""

from __future__ import annotations

import psycopg
from psycopg import errors

# 08 connection, 40 deadlock and serialization, 53 resources, 57 intervention, 58 system
TRANSIENT_CLASSES = {"08", "40", "53", "57", "58"}
# Read-only after a failover; lock not available; time-outs of a transaction
READ_ONLY = "25006"
TRANSIENT_STATES = {READ_ONLY, "55P03", "25P03", "25P04"}
# After these a session is not used again: it is read-only, or its prepared statements are missing
# or not its own.
USELESS_STATES = {READ_ONLY, "26000", "42P05"}
# How a login is refused: this early in the protocol an error has no code.
REFUSALS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "no such database",
    "no such user",
)


class CallTimeout(psycopg.OperationalError):
    """The database did not answer in time; the connection was dropped."""


class ParametersUnavailable(psycopg.OperationalError):
    """The project's code did not say what to connect with."""


def is_transient(error: BaseException) -> bool:
    """Whether trying again later can help: the network, a restart, a failover, a busy server."""
    if isinstance(
        error,
        errors.ConnectionException | CallTimeout | ParametersUnavailable | OSError | TimeoutError,
    ):
        return True
    if isinstance(error, psycopg.InterfaceError):
        return True  # the connection was closed under the call
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return state[:2] in TRANSIENT_CLASSES or state in TRANSIENT_STATES
    return isinstance(error, psycopg.OperationalError) and not is_refused(error)


def is_answer(error: BaseException) -> bool:
    """For a transient error: whether the database is up and only this statement failed: a statement
    or lock timeout, a deadlock, a serialization failure."""
    state = getattr(error, "sqlstate", None) or ""
    return state in {"57014", "55P03"} or state[:2] == "40"


def is_refused(error: BaseException) -> bool:
    """Whether the server refuses this user, password or database, which waiting cannot mend."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return state[:2] in {"28", "3D", "42"}
    text = str(error)
    return any(sign in text for sign in REFUSALS) or (
        "FATAL" in text and (" does not exist" in text or "permission denied" in text)
    )


def concerns_data(error: Exception) -> bool:
    """Whether the database or the driver refuses a value: a retry will not help, but other rows can
    be written. 54 a program limit, P0 a trigger's own refusal."""
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError | UnicodeError):
        return True
    return (getattr(error, "sqlstate", None) or "")[:2] in {"54", "P0"}
