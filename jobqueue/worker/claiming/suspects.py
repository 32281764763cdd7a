"""Suspects: jobs whose last two attempts were lost with their process.

One of them may have killed it, so that a process runs one at a time, beside other jobs. They are
taken by statements of their own: other claims never see them.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from jobqueue.clock import loop_time
from jobqueue.store import claims
from jobqueue.worker.claiming.claim_round import CALL_SECONDS, ClaimRound
from jobqueue.worker.row_batches import concerns_row

# Between looks that find nothing: wakes for other jobs come all the time.
LOOK_SECONDS = 1.0
# How soon the end of one is seen; meanwhile nothing is asked of the database.
END_SECONDS = 0.05
# Some come into question, since other processes may be quicker.
CANDIDATES = 10


class Suspects:
    """Looks for suspects after wakes and polls, and once the one that ran here has ended."""

    def __init__(self, claim_round: ClaimRound, queues: Sequence[str]) -> None:
        """`queues` as the worker names them: with '*' all of them, but for those after a '-'."""
        self.claim_round, self.queues = claim_round, list(queues)
        self._is_wanted, self._looked_at = True, float("-inf")

    def wake(self) -> None:
        """There may be one."""
        self._is_wanted = True

    @property
    def due(self) -> float:
        """When to look next, by the loop's clock."""
        if not self._is_wanted:
            return float("inf")
        now, due = loop_time(), self._looked_at + LOOK_SECONDS
        if due <= now and any(each.claim.suspect for each in self.claim_round.intake.registry):
            return now + END_SECONDS  # one at a time
        return due

    async def claim(self) -> None:
        """Claim one, if there is one and room for it."""
        intake = self.claim_round.intake
        self._is_wanted, self._looked_at = intake.free <= 0, loop_time()
        if intake.free <= 0 or intake.stopped.is_set():
            return
        call, aside = self.claim_round.session.call, self.claim_round.aside
        found = await call(claims.suspects, CALL_SECONDS, self.queues, CANDIDATES, aside.ids())
        for queue, job in found:
            self._is_wanted = True
            try:
                taken = await self.claim_round.claim_plain(claims.claim_suspect, queue, 1, job)
            except psycopg.Error as error:
                if not concerns_row(error):
                    raise
                aside.add(job, error)
                continue
            if taken:
                self._looked_at = float("-inf")  # for the next one as soon as this has ended
                return
