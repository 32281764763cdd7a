"""Exactly-once effects: an atomic handler's writes and its success commit together."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from django.db import connections

from jobqueue.conf import Settings
from jobqueue.exceptions import LeaseLost
from jobqueue.payload import NotJSON
from jobqueue.store.connections import is_weather
from jobqueue.store.endings import FINISH, Written, finish_parameters
from jobqueue.worker import outcomes
from jobqueue.worker.held import Held
from jobqueue.worker.lanes import Lane

BUSY_SECONDS = 0.05


class Recorder:
    """Runs the finish statement inside the handler's own transaction, fenced by the token.

    The commit is sent only after the statement's answer was read: when the lease is gone, the
    handler's writes roll back with it.
    """

    def __init__(self, worker: UUID, settings: Settings) -> None:
        self.worker, self.settings = worker, settings

    def record(self, held: Held, value: Any, lane: Lane) -> None:
        """In the lane's thread, in the transaction. Raises LeaseLost when nothing was written."""
        ending = outcomes.returned(held, value, self.settings)
        if ending.final:
            raise NotJSON(ending.error_message)
        held.recording = ending
        patience = time.monotonic() + self.settings.lease_seconds
        with connections[self.settings.database].cursor() as cursor:
            while True:
                cursor.execute(FINISH, finish_parameters(self.worker, [ending]))
                written = Written(*cursor.fetchone())
                if written.state is not None:
                    held.recorded = written
                    return
                if written.refused or time.monotonic() > patience:
                    raise LeaseLost
                time.sleep(BUSY_SECONDS)  # an operator's session holds the row

    def is_infrastructure(self, held: Held, error: BaseException) -> bool:
        """Whether the recording, not the handler, met the network: the commit's answer is unknown,
        and the fence finds out when something else is written."""
        cause = error.__cause__ or error
        return held.recording is not None and (is_weather(cause) or is_weather(error))
