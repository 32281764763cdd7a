"""Elections, and the term of a leader."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from uuid import UUID

from jobqueue.clock import loop_time
from jobqueue.conf import LEADER_TRUST_MARGIN_SECONDS, Settings
from jobqueue.logs import get_logger
from jobqueue.notifications import LeaderVacant
from jobqueue.store import leadership
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import ExponentialBackoff, Session
from jobqueue.store.error_classes import is_transient
from jobqueue.worker.hints import send_hint
from jobqueue.worker.leadership.cron_steps import CronSteps
from jobqueue.worker.leadership.job_steps import JobSteps
from jobqueue.worker.leadership.maintenance import Maintenance, StuckError
from jobqueue.worker.outages import ErrorPolicy, OutageLog

ELECTION_SECONDS = 5.0
ELECT_SECONDS = 2.0
RESIGN_SECONDS = 1.0
# After a leader has resigned, so that not every worker asks in the same moment.
HINT_JITTER_SECONDS = 0.1
STOPPING, NEWER = "stopping", "newer jobs"  # why a term ended well
log = get_logger()


class EndOfTermError(Exception):
    """A term ended without a fault of the code; says why."""


class Leader:
    """Takes the lead when it is free, does the maintenance, and resigns.

    A follower keeps no connection and sends nothing but elections. `is_leading` compares with the
    clock, so it is false as soon as the lease is no longer safe.
    """

    def __init__(
        self,
        *,
        parameters: ConnectionParameters,
        worker: UUID,
        settings: Settings,
        outage_log: OutageLog,
        on_final: Callable[[Sequence[int]], None],
    ) -> None:
        """`outage_log` is the worker's, so that an outage is logged once. `on_final` gets the ids
        of the jobs that the maintenance has ended."""
        self.worker, self.settings, self.outage_log = worker, settings, outage_log
        self.log = log.bind(worker=str(worker))
        self._session = Session(parameters, "leader")
        self._work = Session(parameters, "maintenance")
        self._maintenance = work = Maintenance(
            stuck_seconds=settings.leader_lease_seconds, outage_log=outage_log
        )
        self.job_steps = JobSteps(
            self._work,
            worker=worker,
            settings=settings,
            wake=work.wake,
            on_final=on_final,
            on_newer=self._on_newer,
        )
        self._cron_steps = CronSteps(self._work, worker=worker, settings=settings, wake=work.wake)
        work.add(*self.job_steps.steps(), *self._cron_steps.steps())
        self._election_due, self._stopping, self._ended, self._resigning = (
            asyncio.Event() for _ in range(4)
        )
        self._ended.set()  # until run() begins
        self._term: int | None = None
        self._trust_end, self._informed_at = 0.0, -ELECTION_SECONDS
        self._election_policy, self._term_policy = (
            ErrorPolicy(p, self.outage_log) for p in ("elect", "lead")
        )
        self._broken = False
        self._yields = False  # to a newer worker, for as long as one lives
        self._failed_wins = 0  # times in a row that it was elected but could not connect
        self._election_due.set()  # the first election needs no hint

    @property
    def is_leading(self) -> bool:
        return (
            self._term is not None and loop_time() < self._trust_end and not self._stopping.is_set()
        )

    @property
    def term(self) -> int | None:
        return self._term if self.is_leading else None

    def on_vacant(self) -> None:
        """A beat, or a resigning leader, reports that there is no leader."""
        self._note_leadership()
        if not self._stopping.is_set() and self._term is None:
            self._election_due.set()

    def on_occupied(self) -> None:
        """A beat saw a leader: this worker need not ask."""
        self._note_leadership()

    def _note_leadership(self) -> None:
        self._informed_at = loop_time()
        if self._term is None:  # this leader makes no call that could notice the database is back
            for purpose in ("elect", "lead", "renew", "maintenance"):
                self.outage_log.end(purpose)

    def on_scheduled(self, at: float) -> None:
        """A job falls due at this moment (epoch seconds, the database's clock)."""
        if self.is_leading:
            self.job_steps.on_scheduled(at)

    def reclaim_now(self) -> None:
        """A death was certified."""
        if self.is_leading:
            self._maintenance.wake("reclaim", loop_time())

    def reconnect(self) -> None:
        """Open fresh connections before the next use."""
        self._session.renew()
        self._work.renew()

    async def resign(self) -> None:
        """Never lead again; return once the lead is given back, or the time for it is up."""
        for event in (self._stopping, self._resigning, self._election_due):
            event.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ELECT_SECONDS + RESIGN_SECONDS):
                await self._ended.wait()

    async def run(self) -> None:
        """Elections and terms, until resigned. Raises an error that came five times in a row."""
        self._ended.clear()
        try:
            while await self._wait_for_vacancy():
                await self._elect()
        finally:
            self._term = None
            self._ended.set()
            self.job_steps.close()
            self._cron_steps.close()
            await self._session.close()
            await self._work.close()

    async def _wait_for_vacancy(self) -> bool:
        """Wait for a hint, or for a while without beats or between slow ones. False if the worker
        is stopping."""
        while not self._election_due.is_set():
            seconds = ELECTION_SECONDS * random.uniform(0.9, 1.1)  # noqa: S311
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._election_due.wait()
            beats = min(self.settings.heartbeat_seconds, ELECTION_SECONDS)
            if loop_time() - self._informed_at > 2 * beats:
                break
        self._election_due.clear()
        await self._pause(random.uniform(0, HINT_JITTER_SECONDS))  # noqa: S311
        return not self._stopping.is_set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _elect(self) -> None:
        start, lease = loop_time(), self.settings.leader_lease_seconds
        try:
            term = await self._session.call(
                leadership.elect,
                ELECT_SECONDS,
                self.worker,
                lease,
                yields=self._yields,
                alive=self.settings.lease_seconds,
            )
        except Exception as error:
            await self._retry_in(self._election_policy.failed(error))
            return
        self._election_policy.succeeded()
        self._note_leadership()
        if term is None:
            await self._session.close()  # a follower keeps no connection
            return
        try:
            await self._lead(term, start + lease - LEADER_TRUST_MARGIN_SECONDS)
        except Exception as error:
            if self._broken:
                raise
            await self._retry_in(self._term_policy.failed(error))
        else:
            self._term_policy.succeeded()

    async def _retry_in(self, seconds: float) -> None:
        await self._pause(seconds)
        self._election_due.set()

    async def _lead(self, term: int, trust_end: float) -> None:
        """Lead while the lease is safe; then stop everything and give the lead back."""
        if self._stopping.is_set():  # the election was in flight when the stop came
            await self._hand_back(term)
            return
        if not await self._open(trust_end):
            await self._hand_back(term)
            self._failed_wins += 1
            self.log.warning("leader_not_working", term=term, in_a_row=self._failed_wins)
            await self._stand_back(self.settings.leader_lease_seconds)
            return
        self._term, self._trust_end = term, trust_end
        self._yields = False
        if not self._stopping.is_set():
            self._resigning.clear()
        self.log.info("leader_elected", term=term)
        try:
            await self._serve(term)
        finally:
            self._term = None

    async def _open(self, trust_end: float) -> bool:
        """Connect for the maintenance: a leader that cannot work must not keep the lead."""
        backoff = ExponentialBackoff()
        while not self._stopping.is_set():
            left = trust_end - loop_time()
            try:
                await self._work.open(min(ELECT_SECONDS, max(left, 0.1)))
                return True
            except Exception as error:
                if not is_transient(error):
                    self.log.exception("leader_work_failed")
            wait = backoff.next_delay()
            if self._failed_wins or loop_time() + wait >= trust_end - RESIGN_SECONDS:
                return False
            await self._pause(wait)
        return False

    async def _serve(self, term: int) -> None:
        why, rest, bug = "trust ended", LEADER_TRUST_MARGIN_SECONDS, None
        failed_wins, self._failed_wins = self._failed_wins, 0
        try:
            async with asyncio.timeout_at(self._trust_end) as scope, asyncio.TaskGroup() as group:
                group.create_task(self._renew(term, scope))
                group.create_task(self._until_resigning())
                group.create_task(self._maintain())
        except* EndOfTermError as ended:
            why = str(ended.exceptions[0])
        except* StuckError as stuck:
            self._failed_wins = failed_wins + 1
            why, rest = f"stuck: {stuck.exceptions[0]}", self.settings.leader_lease_seconds
        except* TimeoutError:
            self._term = None
        except* Exception as failed:
            bug = failed.exceptions[0]
            why = repr(bug)
        self._term = None
        await self._end_term(term, why, rest)
        if bug is not None:
            raise bug

    async def _until_resigning(self) -> None:
        await self._resigning.wait()
        self._term = None  # every exit clears the flag before its first await
        raise EndOfTermError(STOPPING if self._stopping.is_set() else NEWER)

    def _on_newer(self) -> None:
        """There is work on jobs that this code does not understand, and a worker lives that does:
        it shall lead."""
        self._yields = True
        self._resigning.set()

    async def _maintain(self) -> None:
        self.job_steps.begin_term()
        try:
            await self._maintenance.run()
        except StuckError:
            self._term = None
            raise
        except Exception:
            self._term = None
            self._broken = True  # the step has failed often enough
            raise

    async def _renew(self, term: int, scope: asyncio.Timeout) -> None:
        """Renew; each renewal pushes the end of the scope to its own start + lease - margin."""
        lease, every = self.settings.leader_lease_seconds, self.settings.leader_renew_seconds
        backoff, wait = ExponentialBackoff(every / 12, every / 2), every
        while True:
            await asyncio.sleep(wait)
            start = loop_time()
            bound = max(min(every, self._trust_end - start), 0.01)
            try:
                kept = await self._session.call(leadership.renew, bound, self.worker, term, lease)
            except Exception as error:
                if not is_transient(error):
                    self._term = None
                    raise
                self.outage_log.begin("renew", error)
                wait = backoff.next_delay()
                continue
            if scope.expired():  # at this moment the term is ending
                return
            if not kept:
                self._term = None
                raise EndOfTermError("deposed")
            self.outage_log.end("renew")
            self._trust_end = start + lease - LEADER_TRUST_MARGIN_SECONDS
            scope.reschedule(self._trust_end)
            backoff.reset()
            wait = max(start + every - loop_time(), 0.0)

    async def _end_term(self, term: int, why: str, rest: float) -> None:
        """Give the lead back if it is still ours; the term protects a newer leader's."""
        given_back = await self._hand_back(term)
        if why in (STOPPING, NEWER):
            self.log.info("leader_resigned", term=term, given_back=given_back, reason=why)
            return
        self.log.warning("leader_lost", term=term, reason=why, given_back=given_back)
        await self._stand_back(rest)

    async def _stand_back(self, seconds: float) -> None:
        """Let others win for a while: this worker has just failed as leader."""
        await self._pause(seconds * random.uniform(1, 2))  # noqa: S311

    async def _hand_back(self, term: int) -> bool:
        """Resign, and notify the others after the commit. Bounded; never raises."""
        call = self._session.call
        try:
            given_back = await call(leadership.resign, RESIGN_SECONDS, self.worker, term)
            if given_back and self.settings.notify:
                await send_hint(self._session, RESIGN_SECONDS, [LeaderVacant()])
        except Exception as error:
            self.log.debug("leader_resign_failed", term=term, error=repr(error))
            return False
        return given_back
