"""What the database's server must be, in the words that every door uses."""

from __future__ import annotations

from typing import NamedTuple


class ServerFault(NamedTuple):
    """What is wrong with the server, and what to do."""

    code: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


def fault_of(version: int, encoding: str | None, oldest: int) -> ServerFault | None:
    """Return what keeps this server from holding the queue. `version` is libpq's number, 150004
    for 15.4; `oldest` the first major version that will do; no encoding: it is not known."""
    if version < oldest * 10_000:
        major, minor = divmod(version, 10_000)
        return too_old(f"PostgreSQL {oldest} or later is required (found {major}.{minor}).")
    if encoding not in (None, "UTF8"):
        return ServerFault(
            "E010",
            f"The database's encoding is {encoding}; jobqueue needs UTF8, or it could not store "
            "every text of a job, an error or its progress.",
            "Move to a database made with ENCODING 'UTF8' TEMPLATE template0.",
        )
    return None


def too_old(message: str) -> ServerFault:
    """Django words the message alike, and connects to no such server."""
    return ServerFault("E009", message, "Upgrade the server: see pg_upgrade.")
