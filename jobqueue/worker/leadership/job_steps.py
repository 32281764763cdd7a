"""The leader's steps on jobs: find work, promote, reclaim, expire, prune, forget old history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from jobqueue import notifications
from jobqueue.clock import loop_time
from jobqueue.conf import DAY, Settings
from jobqueue.logs import get_logger
from jobqueue.states import FINAL, State
from jobqueue.store import due_work, history_pruning, minute_stats, promotion, reclaims, sweeps
from jobqueue.store.batches import Swept, in_batch
from jobqueue.store.connections import Session
from jobqueue.worker.hints import send_hint
from jobqueue.worker.leadership.maintenance import Step
from jobqueue.worker.leadership.retry_rules import RetryRules
from jobqueue.worker.row_batches import RowsAside, pick_and_act, promote

BATCH_SECONDS = 1.75  # enforced by the server
CALL_SECONDS = 2.5  # enforced here, by dropping the socket
FIND_WORK_SECONDS = 5.0
LOCKED_SECONDS = 0.5  # until the next try at a due row that is locked
WORKERS_KEPT_SECONDS = TICKS_KEPT_SECONDS = 7 * DAY
log = get_logger()


class JobSteps:
    """The steps, and what they remember between batches."""

    def __init__(
        self,
        session: Session,
        *,
        worker: UUID,
        settings: Settings,
        wake: Callable[[str, float], None],
        on_final: Callable[[Sequence[int]], None],
        on_newer: Callable[[], None],
    ) -> None:
        """`on_final` gets the ids of the jobs that ended here. `on_newer`: there is work that only
        newer code may do, and a worker lives that has it."""
        self.session, self.worker, self.settings = session, worker, settings
        self.wake, self.on_final, self.on_newer = wake, on_final, on_newer
        self.actor = f"leader {worker}"
        ages = ((state, settings.retention.get(state)) for state in sorted(FINAL))
        self.retention = {str(state): age for state, age in ages if age is not None}
        self._last_event = 0  # how far the pass through the events has come
        self._aside = {name: RowsAside(name) for name in ("promote", "reclaim", "expire", "prune")}
        self._rules = RetryRules(settings)
        self._epoch: float | None = None  # the database's clock minus the loop's

    def steps(self) -> list[Step]:
        """The table. `find_work` costs one statement and wakes the steps that have work."""
        return [
            Step("find work", self.find_work, interval=FIND_WORK_SECONDS),
            Step("promote", self.promote, limit=500),
            Step("reclaim", self.reclaim, limit=100),
            Step("expire", self.expire, limit=100),
            Step("prune", self.prune, limit=500),
            Step("minutes", self.write_minute, interval=60.0),
            Step("forget workers", self.forget_workers, limit=200, interval=300.0),
            Step("forget ticks", self.forget_ticks, limit=500, interval=600.0),
            Step("forget events", self.forget_events, limit=2000, interval=3600.0),
        ]

    def begin_term(self) -> None:
        """Try the rows again that an earlier term set aside."""
        for aside in self._aside.values():
            aside.forget()

    def close(self) -> None:
        """Close what is used only while leading."""
        self._rules.close()

    def on_scheduled(self, at: float) -> None:
        """A job was enqueued that falls due at this moment of the database's clock."""
        now = loop_time()
        # Until the first `find_work` has its answer, nothing is known of that clock.
        self.wake("promote", now if self._epoch is None else max(at - self._epoch, now))

    async def find_work(self, limit: int) -> bool:
        """Find out which steps have work."""
        unknown = self.settings.unknown_task_seconds
        alive = self.settings.lease_seconds
        answer = await self.session.call(
            due_work.find, CALL_SECONDS, unknown, self.retention, alive
        )
        now = loop_time()
        self._epoch = answer.now - now
        if answer.next_due is not None:
            self.wake("promote", answer.next_due - self._epoch)
        for name in ("reclaim", "expire", "prune"):
            if getattr(answer, name):
                self.wake(name, now)
        if answer.newer:
            self.on_newer()
        return False

    async def promote(self, limit: int) -> bool:
        """Due jobs become READY; then sleep until the next one is due."""
        queues = await promote(self._batch, self._aside["promote"], limit)
        await self._notify_ready(set(queues))
        if len(queues) == limit:
            return True
        wait = await self.session.call(promotion.next_due, CALL_SECONDS)
        if wait is not None:
            least = 0.0 if queues else LOCKED_SECONDS if wait <= 0 else 0.001
            self.wake("promote", loop_time() + max(wait, least))
        return False

    async def reclaim(self, limit: int) -> bool:
        """Claims of dead and silent workers end as LOST."""
        aside = self._aside["reclaim"]
        rows = await self._batch(reclaims.lapsed, limit, aside.ids())
        # Outside of any transaction: a project's backoff rule may be slow.
        verdicts = await self._rules.verdicts(rows)

        async def given(connection: AsyncConnection[Any]) -> list[reclaims.Verdict]:
            return verdicts

        _, swept = await pick_and_act(
            self._batch,
            aside,
            given,
            lambda connection, some: reclaims.reclaim(connection, some, self.actor),
        )
        if swept:
            workers = sorted({str(job.worker) for job in swept})
            log.warning("jobs_reclaimed", count=len(swept), workers=workers)
        self._log_and_signal(swept)
        for job in swept:
            if job.state == State.SCHEDULED:
                self.on_scheduled(job.run_at)
        await self._notify_ready({job.queue for job in swept if job.state == State.READY})
        return (len(rows) == limit or len(verdicts) < len(rows)) and bool(swept)

    async def expire(self, limit: int) -> bool:
        """Waiting jobs past their time end as DEAD."""
        unknown = self.settings.unknown_task_seconds
        picked, swept = await pick_and_act(
            self._batch,
            self._aside["expire"],
            lambda connection: sweeps.expirable(
                connection, limit, unknown, self._aside["expire"].ids()
            ),
            lambda connection, ids: sweeps.expire(connection, ids, unknown, self.actor),
        )
        self._log_and_signal(swept)
        return picked >= limit and bool(swept)

    async def prune(self, limit: int) -> bool:
        """One batch of each final state whose retention is over."""
        more = False
        for state, age in self.retention.items():
            picked, gone = await self._prune(state, age, limit)
            more = more or (picked == limit and gone > 0)
        return more

    async def _prune(self, state: str, age: float, limit: int) -> tuple[int, int]:
        gone = 0

        async def act(connection: AsyncConnection[Any], ids: Sequence[int]) -> list[Swept]:
            nonlocal gone
            gone += await sweeps.prune(connection, ids, state, age)
            return []

        aside = self._aside["prune"]
        picked, _ = await pick_and_act(
            self._batch,
            aside,
            lambda connection: sweeps.prunable(connection, state, age, limit, aside.ids()),
            act,
        )
        if gone:
            log.debug("jobs_pruned", state=state, count=gone)
        return picked, gone

    async def write_minute(self, limit: int) -> bool:
        """Write the figures of the last full minute, for the charts."""
        return bool(await self._batch(minute_stats.write))

    async def forget_workers(self, limit: int) -> bool:
        """Delete rows of workers last seen a week ago."""
        gone = await self._batch(
            history_pruning.forget_workers, self.worker, WORKERS_KEPT_SECONDS, limit
        )
        return bool(gone == limit)

    async def forget_ticks(self, limit: int) -> bool:
        """Delete ticks older than a week."""
        gone = await self._batch(history_pruning.forget_ticks, TICKS_KEPT_SECONDS, limit)
        return bool(gone == limit)

    async def forget_events(self, limit: int) -> bool:
        """Continue the pass through the events: delete notes on jobs that are gone, and acts past
        their retention."""
        age = self.settings.retention["ACTS"]
        last = await self._batch(history_pruning.forget_events, self._last_event, age, limit)
        self._last_event = last or 0
        return last is not None

    def _log_and_signal(self, swept: Sequence[Swept]) -> None:
        for job in swept:
            _log_final(job)
        if final := [job.id for job in swept if State(job.state) in FINAL]:
            self.on_final(final)

    async def _batch(self, verb: Callable[..., Any], *args: Any) -> Any:
        return await self.session.call(in_batch, CALL_SECONDS, BATCH_SECONDS, verb, *args)

    async def _notify_ready(self, queues: set[str]) -> None:
        if queues and self.settings.notify:
            await send_hint(self.session, CALL_SECONDS, notifications.ready(queues))


def _log_final(job: Swept) -> None:
    facts: dict[str, Any] = {
        "job": job.id,
        "task": job.task,
        "queue": job.queue,
        "reason": job.reason,
        "attempts": job.attempts,
        "failures": job.failures,
    }
    if job.state == State.DEAD:
        log.error("job_dead", **facts)
    elif job.state == State.CANCELLED:
        log.info("job_cancelled", **facts)
