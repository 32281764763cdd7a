"""Earlier attempts, read for a handler with a context or a signal receiver."""

from __future__ import annotations

import asyncio

import psycopg

from jobqueue.logs import get_logger
from jobqueue.store import attempts
from jobqueue.store.claims import Claim
from jobqueue.store.connections import Session
from jobqueue.task_results import Past

CALL_SECONDS = 2.0
log = get_logger()


class History:
    """Has a connection of its own, opened by the first retry that wants it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._turn = asyncio.Lock()

    async def of(self, claim: Claim) -> list[Past]:
        """Return this job's ended attempts, oldest first; an empty list if they cannot be read,
        and the job runs without them."""
        try:
            async with self._turn:
                rows = await self.session.call(
                    attempts.past, CALL_SECONDS, claim.id, claim.attempts
                )
        except (psycopg.Error, OSError) as error:
            log.warning("attempt_history_unread", job=claim.id, error=str(error).strip())
            return []
        return [Past(*row) for row in rows]
