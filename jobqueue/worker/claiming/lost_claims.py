"""Claim rounds whose answer was lost with the connection: their rows may be ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.errors import InsufficientPrivilege

from jobqueue.clock import loop_time
from jobqueue.store import claims, server_process
from jobqueue.store.claims import Claim
from jobqueue.store.connections import Session
from jobqueue.store.server_process import ServerProcess

QUERY_SECONDS = 1.0
END_SECONDS = 2.0


@dataclass(slots=True)
class LostRound:
    """One claim round without an answer."""

    backend: ServerProcess | None
    tokens: Sequence[UUID]
    until: float  # when its leases will have lapsed anyway
    ended: bool = False  # its server process is gone, so the next answer is final

    @property
    def is_direct(self) -> bool:
        return self.backend is not None and self.backend.direct


class LostClaims:
    """Ends the server process of a lost round, then asks once for its tokens: that answer is final.

    If the process cannot certainly be ended (behind a pooler), it asks until the leases have
    lapsed.
    """

    def __init__(self, session: Session, worker: UUID) -> None:
        self.session, self.worker = session, worker
        self._unresolved: list[LostRound] = []
        self._next_query_at = float("-inf")

    def __len__(self) -> int:
        return len(self._unresolved)

    @property
    def slots(self) -> int:
        """How many rows may still turn up. Zero with a pooler, which ends a statement whose client
        is gone; otherwise the worker would be idle for a whole lease."""
        return sum(len(lost.tokens) for lost in self._unresolved if lost.is_direct)

    def are_due(self, now: float) -> bool:
        return bool(self._unresolved) and now >= self._next_query_at

    def add(
        self,
        backend: ServerProcess | None,
        tokens: Sequence[UUID],
        *,
        until: float,
        ended: bool = False,
    ) -> None:
        """It is not known whether this round's statement was executed. `ended`: it is certainly no
        longer running."""
        self._unresolved.append(LostRound(backend, tokens, until, ended))
        self._next_query_at = float("-inf")

    async def resolve(self, seconds: float, on_found: Callable[[Claim], None]) -> None:
        """Ask about every lost round, within the bound, and pass on the rows that are found."""
        end, known = loop_time() + seconds, list(self._unresolved)
        for lost in known:
            if lost.is_direct and not lost.ended:
                lost.ended = await self._end_backend(lost, end - loop_time())
            asked, tokens = loop_time(), list(lost.tokens)
            rows = await self.session.call(claims.found, end - asked, self.worker, tokens)
            if lost.ended or rows or asked > lost.until:
                self._unresolved.remove(lost)
            for row in rows:
                on_found(row)
        # One that was lost meanwhile is asked about at once.
        if all(lost in known for lost in self._unresolved):
            self._next_query_at = loop_time() + QUERY_SECONDS

    async def _end_backend(self, lost: LostRound, seconds: float) -> bool:
        assert lost.backend is not None  # noqa: S101
        wait = min(END_SECONDS, seconds / 2)
        try:
            return await self.session.call(server_process.end, seconds, lost.backend, wait)
        except InsufficientPrivilege:  # the login's role differs from the session's
            return False
