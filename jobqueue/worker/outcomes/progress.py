"""Running handlers' progress on its way to the database: the latest value, twice a second."""

from __future__ import annotations

from uuid import UUID

from jobqueue.clock import loop_time
from jobqueue.logs import get_logger
from jobqueue.store import finish
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import concerns_data
from jobqueue.worker.inflight import InFlight

CALL_SECONDS = 5.0
APART_SECONDS = 0.5
log = get_logger()


class Progress:
    """Progress that handlers reported and no row shows yet. An outcome carries its own."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.due = 0.0  # when the next of it may be stored
        self._news: dict[UUID, InFlight] = {}

    def __bool__(self) -> bool:
        return bool(self._news)

    def note(self, inflight: InFlight) -> None:
        self._news[inflight.token] = inflight

    def forget(self, inflight: InFlight) -> None:
        self._news.pop(inflight.token, None)

    async def store(self) -> None:
        """Write the latest of each claim; after a transient error it is kept for the next time."""
        batch = [
            inflight
            for inflight in self._news.values()
            if inflight.fate is None and not inflight.ended
        ]
        self._news.clear()
        self.due = loop_time() + APART_SECONDS
        rows = [(h.claim.id, h.token, h.control.progress) for h in batch if h.control.progress]
        if not rows:
            return
        try:
            await self.session.call(finish.progress, CALL_SECONDS, rows)
        except Exception as error:
            if not concerns_data(error):
                self._news = {inflight.token: inflight for inflight in batch} | self._news
                raise
            log.warning("progress_refused", jobs=[id for id, _, _ in rows], error=str(error))
