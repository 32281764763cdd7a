"""The first contact with the database: wait for it, or end with one clear sentence."""

from __future__ import annotations

import asyncio
import contextlib

import psycopg
import structlog

from jobqueue.conf import Settings
from jobqueue.store import workers
from jobqueue.store.connections import Backoff, Session, is_refused, is_weather
from jobqueue.store.workers import Identity
from jobqueue.worker.shutdown import Shutdown

CALL_SECONDS = 5.0
log = structlog.get_logger("jobqueue")


class CannotStartError(Exception):
    """The worker could not go on; the message is one sentence for the operator."""


async def first_contact(
    session: Session, identity: Identity, settings: Settings, shutdown: Shutdown
) -> None:
    """Check the tables and register, waiting while the database is away. Raises CannotStartError
    for what no waiting mends: a refused login, missing tables, missing rights."""
    backoff, told = Backoff(0.2, 5.0), False
    while not shutdown.requested.is_set():
        try:
            if not await session.call(workers.tables_exist, CALL_SECONDS):
                raise CannotStartError(
                    "The tables of jobqueue are missing in this database: run `manage.py migrate`."
                )
            await session.call(workers.register, CALL_SECONDS, identity)
            return
        except psycopg.Error as error:
            if is_refused(error) or not is_weather(error):
                raise CannotStartError(_sentence(error)) from None
            if not told:
                log.warning("database_unreachable", purpose="start", error=str(error).strip())
                told = True
        except OSError as error:
            log.warning("database_unreachable", purpose="start", error=str(error))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff.next_delay()):
                await shutdown.requested.wait()


def _sentence(error: psycopg.Error) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"The database user lacks a right that jobqueue needs: {text}"
    if isinstance(error, psycopg.errors.UndefinedColumn | psycopg.errors.UndefinedTable):
        return f"The tables of jobqueue are older than this code ({text}): run `manage.py migrate`."
    return f"The database cannot be used: {text}"
