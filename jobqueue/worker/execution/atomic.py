"""Exactly-once effects: an atomic handler's writes and its success commit together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError
from psycopg.errors import SerializationFailure

from jobqueue.conf import Settings
from jobqueue.exceptions import JobInterrupted, LeaseLost
from jobqueue.logs import get_logger
from jobqueue.store.error_classes import is_transient
from jobqueue.store.finish import FINISH, Written, finish_parameters
from jobqueue.worker.execution.own_transaction import OwnTransaction
from jobqueue.worker.inflight import InFlight, Stop
from jobqueue.worker.outcomes import classify, lost_commits
from jobqueue.worker.outcomes.attempt_options import Ended, How, Options
from jobqueue.worker.outcomes.classify import BadResult, NoConnection

BUSY_SECONDS = 0.05
CONFLICT = (
    "The transaction of an atomic task began before the heartbeat last renewed the job's lease: "
    "from REPEATABLE READ on it can last no longer than a beat. Use READ COMMITTED"
)
UNCOMMITTED = (
    "The transaction of this atomic task has ended without a commit, so nothing of it is stored. "
    "Perhaps AUTOCOMMIT is False in DATABASES: remove it there"
)
log = get_logger()


class Recorder:
    """Runs the finish statement inside the handler's own transaction, fenced by the token.

    The commit is sent only after the statement's answer was read: if the lease is gone, the
    handler's writes roll back.
    """

    def __init__(self, worker: UUID, settings: Settings) -> None:
        self.worker, self.settings = worker, settings

    def run(self, inflight: InFlight, call: Callable[[], Any]) -> Any:
        """Runs in the handler's thread: the handler and the record of its success, in one
        transaction."""
        database = self.settings.database
        try:
            connections[database].ensure_connection()
        except DatabaseError as error:
            raise NoConnection(str(error)) from error
        with transaction.atomic(using=database, durable=True):
            own = OwnTransaction(database, inflight.token)
            # The first on_commit hook: an error after it comes from the handler's own hooks.
            transaction.on_commit(inflight.mark_committed, using=database)
            value = call()
            assert inflight.handler_thread is not None  # noqa: S101  # this code runs in it
            inflight.handler_thread.shut_interrupts()  # the commit's answer decides
            self._record(inflight, value, own)
        if not inflight.committed:
            raise TransactionManagementError(UNCOMMITTED)
        return value

    def _record(self, inflight: InFlight, value: Any, own: OwnTransaction) -> None:
        """Raises LeaseLost when the row is no longer ours: then nothing was written."""
        ending = classify.returned(inflight, value, self.settings)
        if ending.final:
            raise BadResult(ending)
        connection = own.connection()
        inflight.mark_recording(ending)
        deadline = time.monotonic() + self.settings.lease_seconds
        with connection.cursor() as cursor:
            while True:
                _execute(cursor, finish_parameters(self.worker, [ending]))
                written = Written(*cursor.fetchone())
                own.check(written)
                if written.state is not None:
                    inflight.mark_recorded(written)
                    return
                if written.refused or time.monotonic() > deadline:
                    raise LeaseLost
                if inflight.stop_reason in (Stop.SHUTDOWN, Stop.LEASE):
                    raise JobInterrupted  # the job runs again; only the time is lost
                time.sleep(BUSY_SECONDS)  # an operator's session holds the row

    def judge(
        self, inflight: InFlight, error: BaseException | None, options: Options
    ) -> Ended | None:
        """What the recording makes of the handler's end; None if it was never reached, or if the
        error is the handler's own."""
        if inflight.recording is None:
            return None
        if inflight.committed:
            if error is not None:
                job, task = inflight.claim.id, inflight.claim.task
                log.error("on_commit_hook_failed", job=job, task=task, exc_info=error)
            return Ended(How.RECORDED, inflight.recording)
        if error is None:
            return None
        if isinstance(error, LeaseLost):
            return Ended(How.REFUSED, inflight.recording)
        if inflight.stop_reason is not None and classify.unwound(error):
            return None
        if _is_conflict(error):
            return None  # certainly rolled back, and it may happen again: counted
        if isinstance(error, OperationalError | InterfaceError) or is_transient(error):
            # The commit's answer is unknown. If it landed, this write is refused and the success is
            # found in the history; if not, the handler runs again.
            return Ended(How.PUT, lost_commits.classified(inflight, error, options, self.settings))
        return None


def _execute(cursor: Any, parameters: Mapping[str, Any]) -> None:
    try:
        cursor.execute(FINISH, parameters)
    except OperationalError as error:
        if not _is_conflict(error):
            raise
        raise OperationalError(f"{CONFLICT} ({error})") from error.__cause__


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error.__cause__, SerializationFailure)
