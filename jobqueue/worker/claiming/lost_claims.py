"""Claim rounds whose answer was lost in a cut connection: their rows may be ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.errors import InsufficientPrivilege

from jobqueue.clock import loop_time
from jobqueue.store import claims
from jobqueue.store.claims import Backend, Claim
from jobqueue.store.connections import Session

ASK_SECONDS = 1.0
END_SECONDS = 2.0


@dataclass(slots=True)
class Doubt:
    """One lost round."""

    backend: Backend | None
    tokens: Sequence[UUID]
    until: float  # when its leases have lapsed anyway
    ended: bool = False  # its server process is gone, so the next answer is final

    @property
    def is_direct(self) -> bool:
        return self.backend is not None and self.backend.direct


class LostClaims:
    """Ends the server process behind a lost round, then asks once by its tokens: that is final.

    Where the process cannot be ended for certain (a pooler stands between), asking goes on until
    the leases have lapsed.
    """

    def __init__(self, session: Session, worker: UUID) -> None:
        self.session, self.worker = session, worker
        self._open: list[Doubt] = []
        self._ask_at = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    @property
    def slots(self) -> int:
        """How many rows may yet turn up. Not counted behind a pooler: it ends a statement whose
        client is gone, and the worker would stand still for a whole lease."""
        return sum(len(doubt.tokens) for doubt in self._open if doubt.is_direct)

    def are_due(self, now: float) -> bool:
        return bool(self._open) and now >= self._ask_at

    def add(self, backend: Backend | None, tokens: Sequence[UUID], *, until: float) -> None:
        """Nobody knows whether this round's statement has happened."""
        self._open.append(Doubt(backend, tokens, until))
        self._ask_at = float("-inf")

    async def resolve(self, seconds: float, take: Callable[[Claim], None]) -> None:
        """Ask for every open round, within the bound, and hand on the rows that are found."""
        end, known = loop_time() + seconds, list(self._open)
        for doubt in known:
            if doubt.is_direct and not doubt.ended:
                doubt.ended = await self._end(doubt, end - loop_time())
            asked, tokens = loop_time(), list(doubt.tokens)
            rows = await self.session.call(claims.found, end - asked, self.worker, tokens)
            if doubt.ended or rows or asked > doubt.until:
                self._open.remove(doubt)
            for row in rows:
                take(row)
        if all(doubt in known for doubt in self._open):  # else another round was lost meanwhile
            self._ask_at = loop_time() + ASK_SECONDS

    async def _end(self, doubt: Doubt, seconds: float) -> bool:
        assert doubt.backend is not None  # noqa: S101
        wait = min(END_SECONDS, seconds / 2)
        try:
            return await self.session.call(claims.end_backend, seconds, doubt.backend, wait)
        except InsufficientPrivilege:  # the login's role is another than the session's
            return False
