"""Before the first claim: wait for the database, or exit with one clear sentence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pkgutil import iter_modules

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql.features import DatabaseFeatures

from jobqueue import migrations
from jobqueue.logs import get_logger
from jobqueue.store import workers
from jobqueue.store.connections import ExponentialBackoff, Session
from jobqueue.store.error_classes import is_refused, is_transient
from jobqueue.store.workers import Identity
from jobqueue.worker.shutdown import Shutdown
from jobqueue.worker.threads.handler_thread import HandlerThreads
from jobqueue.worker.threads.orm_connections import tidy_connections

CALL_SECONDS = 5.0
log = get_logger()


class CannotStartError(Exception):
    """The worker could not go on; the message is one sentence for the operator."""


async def first_contact(
    session: Session, identity: Identity, shutdown: Shutdown, migrate: str
) -> bool:
    """Check the tables and register, waiting while the database is away. Returns whether it was
    reached before the shutdown. Raises CannotStartError for what waiting cannot mend: a refused
    login, missing tables (run `migrate`), missing rights."""
    backoff, logged = ExponentialBackoff(0.2, 5.0), False
    while not shutdown.requested.is_set():
        try:
            obstacle = await session.call(
                workers.obstacle, CALL_SECONDS, _newest_migration(), _oldest_server(), migrate
            )
            if obstacle is not None:
                raise CannotStartError(obstacle)
            await session.call(workers.register, CALL_SECONDS, identity)
            return True
        except (psycopg.Error, OSError) as error:
            if isinstance(error.__cause__, ImproperlyConfigured):
                raise CannotStartError(str(error.__cause__)) from None
            if isinstance(error, psycopg.Error) and (is_refused(error) or not is_transient(error)):
                raise CannotStartError(_sentence(error)) from None
            if not logged:
                log.warning("database_unreachable", purpose="start", error=str(error).strip())
                logged = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff.next_delay()):
                await shutdown.requested.wait()
    return False


def _newest_migration() -> str:
    names = [module.name for module in iter_modules(migrations.__path__)]
    return max(name for name in names if name[0].isdecimal())


def _oldest_server() -> int:
    asked: tuple[int, ...] | None = DatabaseFeatures.minimum_database_version
    return asked[0] if asked else 0


def _sentence(error: psycopg.Error) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"The database user lacks a right that jobqueue needs: {text}"
    return f"The database cannot be used: {text}"


async def prepare(
    handler_threads: HandlerThreads, call: Callable[[], object], shutdown: Shutdown
) -> None:
    """Write what the project declares in code to the tables. A failure is logged, not fatal; a
    stop does not wait for it."""
    handler_thread = handler_threads.borrow()
    work = asyncio.wrap_future(handler_thread.submit(_in_thread, call))
    stop = asyncio.create_task(shutdown.requested.wait(), name="stop-while-preparing")
    await asyncio.wait({work, stop}, return_when="FIRST_COMPLETED")
    stop.cancel()
    await asyncio.wait({stop})
    if not work.done():  # its thread ends with the process
        work.cancel()
        return
    if error := work.exception():
        transient = is_transient(error.__cause__ or error)  # Django wraps the driver's
        details = {"error": str(error).strip()} if transient else {"exc_info": error}
        log.error("schedules_sync_failed", **details)
    handler_threads.give_back(handler_thread)


def _in_thread(call: Callable[[], object]) -> None:
    try:
        call()
    finally:
        tidy_connections()
