"""LISTEN on a connection of its own, proven alive by notifications to itself."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID, uuid4

import structlog
from psycopg import AsyncConnection, sql

from jobqueue.store.connections import Session, drop
from jobqueue.worker.news import News
from jobqueue.worker.weather import Patience

CHANNEL = "jobqueue"
CONNECT_SECONDS = 10.0
MISSING_PROOFS = 2
log = structlog.get_logger("jobqueue")


class Listener:
    """Hears what other processes tell. While it cannot, the worker polls and says so.

    Each beat sends a proof to a channel of this worker alone; when two in a row do not come back,
    the connection only looks alive and is replaced.
    """

    def __init__(
        self, parameters: dict[str, Any], worker: UUID, news: News, patience: Patience
    ) -> None:
        self.channel = f"jobqueue_{worker.hex}"
        self.session = Session(parameters, "listen", prepare=self._listen)
        self.news, self.patience = news, patience
        self.state = "polling: not listening yet"
        self._proof = ""
        self._missing = 0

    async def _listen(self, connection: AsyncConnection[Any]) -> None:
        for channel in (CHANNEL, self.channel):
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def next_proof(self) -> str:
        """Return what the coming beat sends to `channel`; empty while nobody would hear it."""
        if self.state != "notified":
            return ""
        if self._proof:
            self._missing += 1
            if self._missing >= MISSING_PROOFS:
                log.warning("listener_silent", proofs=self._missing)
                self._missing, self._proof = 0, ""
                self.reconnect()
                return ""
        self._proof = uuid4().hex
        return self._proof

    def reconnect(self) -> None:
        """Have a fresh connection, and what was missed meanwhile looked for."""
        if self.session.connection is not None:
            drop(self.session.connection)

    async def run(self) -> None:
        """The service: connect, hear, connect again; ends by cancellation only."""
        try:
            while True:
                try:
                    await self._hear()
                except Exception as error:
                    self.state = f"polling: {str(error).strip() or type(error).__name__}"
                    await asyncio.sleep(self.patience.failed(error))
        finally:
            await self.session.close()

    async def _hear(self) -> None:
        connection = await self.session.open(CONNECT_SECONDS)
        self.state, self._proof, self._missing = "notified", "", 0
        self.patience.succeeded()
        # LISTEN has committed: whatever was enqueued before is seen by this look.
        self.news.on_ready(None)
        self.news.on_vacant()
        async with contextlib.aclosing(connection.notifies()) as notifications:
            async for note in notifications:
                if note.channel == CHANNEL:
                    self.news.hear(note.payload)
                elif note.payload == self._proof:
                    self._proof, self._missing = "", 0
        raise ConnectionError("the listening connection ended")
