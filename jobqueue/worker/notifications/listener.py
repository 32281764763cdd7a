"""LISTEN on a connection of its own, proven alive by notifications to itself."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

from psycopg import AsyncConnection, sql
from psycopg.pq.abc import PGconn

from jobqueue.clock import loop_time
from jobqueue.logs import get_logger
from jobqueue.notifications import CHANNEL
from jobqueue.states import Wake
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import ExponentialBackoff, Session, drop
from jobqueue.worker.notifications.dispatch import Dispatcher
from jobqueue.worker.outages import ErrorPolicy

CONNECT_SECONDS = 10.0
MISSING_PROOFS = 2
PROOF_SECONDS = 1.0
log = get_logger()


# A listening session is always idle. (PostgreSQL 13 does not have the setting.)
NO_IDLE_TIMEOUT = """
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'
"""


class Listener:
    """Receives notifications. While it cannot, the worker polls and says so.

    Each beat sends a proof to a channel of this worker. The connection counts only once the first
    proof has come back. When two in a row do not, it only looks alive and is replaced.
    """

    def __init__(
        self,
        parameters: ConnectionParameters,
        worker: UUID,
        dispatcher: Dispatcher,
        error_policy: ErrorPolicy,
    ) -> None:
        self.channel = f"jobqueue_{worker.hex}"
        self.session = Session(parameters, "listen", prepare=self._listen)
        self.dispatcher, self.error_policy = dispatcher, error_policy
        self.state = str(Wake.STARTING)
        self._listening = False
        self._proof, self._sent_at = "", 0.0
        self._missing = 0
        self._dropped = ""  # why this listener cut the connection
        self._silence = ExponentialBackoff(1.0, 30.0)

    @property
    def is_proven(self) -> bool:
        return self.state == Wake.NOTIFIED

    async def _listen(self, connection: AsyncConnection[Any]) -> None:
        await connection.execute(NO_IDLE_TIMEOUT)
        # For what arrives during these statements; later `_read` does it.
        connection.add_notify_handler(
            lambda note: self._on_notification(note.channel, note.payload)
        )
        for channel in (CHANNEL, self.channel):
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def next_proof(self) -> str:
        """Return what the next beat sends to `channel`; empty while not listening."""
        if not self._listening:
            return ""
        now = loop_time()
        if self._proof:
            if now - self._sent_at < PROOF_SECONDS:
                return ""  # beats can follow each other closely; the proof may still be on its way
            self._missing += 1
            if self._missing >= MISSING_PROOFS:
                if not self._silence.failures:
                    log.warning("listener_silent", proofs=self._missing)
                self._drop(Wake.SILENT)
                return ""
        self._proof, self._sent_at = uuid4().hex, now
        return self._proof

    def reconnect(self) -> None:
        """Open a fresh connection, and check what was missed."""
        self._drop(Wake.RECONNECTING)

    def _drop(self, why: str) -> None:
        self._listening, self._dropped = False, why
        if self.session.connection is not None:
            drop(self.session.connection)

    async def run(self) -> None:
        """The service: connect, listen, connect again. It ends only by cancellation."""
        try:
            while True:
                try:
                    await self._listen_until_lost()
                except Exception as error:
                    await asyncio.sleep(await self._on_lost(error))
        finally:
            await self.session.close()

    async def _on_lost(self, error: Exception) -> float:
        """The connection is lost. Return the seconds to wait before the next."""
        await self.session.close()
        was_proven, why = self.is_proven, self._dropped
        self.state = why or f"polling: {str(error).strip() or type(error).__name__}"
        self._listening, self._dropped = False, ""
        if was_proven:
            self.dispatcher.poll()
        if why:
            return self._silence.next_delay() if why == Wake.SILENT else 0.0
        return self.error_policy.failed(error)

    async def _listen_until_lost(self) -> None:
        connection = await self.session.open(CONNECT_SECONDS)
        self._listening, self._proof, self._missing = True, "", 0
        self.state = Wake.SILENT if self._silence.failures else Wake.STARTING
        self.error_policy.succeeded()
        # LISTEN has committed: this sees whatever was enqueued before, and its beat sends the first
        # proof.
        self.dispatcher.check_everything()
        await self._read(connection.pgconn)

    async def _read(self, driver: PGconn) -> None:
        """Read straight from the driver until the connection ends: psycopg's own wait
        wakes ten times a second, which would be most of what an idle worker does."""
        loop, readable, descriptor = asyncio.get_running_loop(), asyncio.Event(), driver.socket
        loop.add_reader(descriptor, readable.set)
        readable.set()  # something may have come with an answer
        try:
            while True:
                await readable.wait()
                readable.clear()  # before reading: what arrives next sets it again
                driver.consume_input()
                while note := driver.notifies():
                    self._on_notification(
                        note.relname.decode(), note.extra.decode(errors="replace")
                    )
        finally:
            loop.remove_reader(descriptor)

    def _on_notification(self, channel: str, payload: str) -> None:
        if channel == CHANNEL:
            self.dispatcher.dispatch(payload)
        elif payload == self._proof:
            self._on_proof()

    def _on_proof(self) -> None:
        self._proof, self._missing, self.state = "", 0, Wake.NOTIFIED
        if self._silence.failures:
            self._silence.reset()
            log.info("listener_recovered")
