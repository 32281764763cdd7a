"""One log line when the database goes away and one when it is back; in between, waiting.

The rest of an outage: `lease.lease_guard` stops handlers before their leases end,
`claiming.lost_claims` asks about claims without an answer, `outcomes.completer` keeps outcomes and
writes them again, `startup` waits for the first contact, `store.connections` drops dead sockets."""

from __future__ import annotations

import time

from jobqueue.logs import get_logger
from jobqueue.store.connections import ExponentialBackoff
from jobqueue.store.error_classes import is_answer, is_transient

TOLERATED_BUGS = 5
log = get_logger()


class OutageLog:
    """One worker's shared record of database outages, and of services whose calls reach the
    database but time out or conflict."""

    def __init__(self) -> None:
        self._troubled: set[str] = set()
        self._hindered: set[str] = set()
        self._since = 0.0

    def begin(self, purpose: str, error: BaseException, *, helper: bool = False) -> None:
        """A service has met a transient error. The work of a helper also gets done without it, so
        its error alone is no outage; the other services report one."""
        if is_answer(error) or helper:
            if purpose not in self._hindered and not (helper and self._troubled):
                self._hindered.add(purpose)
                log.warning("database_call_failed", purpose=purpose, error=str(error).strip())
            return
        if not self._troubled:
            self._since = time.monotonic()
            log.warning("database_unreachable", purpose=purpose, error=str(error).strip())
        self._troubled.add(purpose)

    def concerns(self, purpose: str) -> bool:
        """Whether this service is waiting for the database at the moment."""
        return purpose in self._troubled or purpose in self._hindered

    def end(self, purpose: str) -> None:
        self._hindered.discard(purpose)
        if purpose in self._troubled:
            self._troubled.discard(purpose)
            if not self._troubled:
                away = round(time.monotonic() - self._since, 3)
                log.info("database_recovered", seconds=away)


class ErrorPolicy:
    """How one service handles its errors: it waits after a transient one and raises the
    fifth non-transient one in a row.

    Only a complete success resets the count. Otherwise a loop that always fails and carries on
    would look healthy and do nothing.
    """

    def __init__(self, purpose: str, outage_log: OutageLog, *, helper: bool = False) -> None:
        self.purpose, self._outages, self._helper = purpose, outage_log, helper
        self._backoff = ExponentialBackoff()
        self._bugs = 0

    def succeeded(self) -> None:
        if self._bugs or self._backoff.failures:
            self._bugs = 0
            self._backoff.reset()
            self._outages.end(self.purpose)

    def failed(self, error: Exception) -> float:
        """Return the seconds to wait before the next try. Raises the error if it is the fifth
        consecutive non-transient one."""
        if is_transient(error):
            self._outages.begin(self.purpose, error, helper=self._helper)
            return self._backoff.next_delay()
        self._bugs += 1
        log.error("service_failed", purpose=self.purpose, in_a_row=self._bugs, exc_info=error)
        if self._bugs >= TOLERATED_BUGS:
            raise error
        return self._backoff.next_delay()
