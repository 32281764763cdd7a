"""The leader's steps on jobs: look, promote, reclaim, expire, prune; and tidying."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from jobqueue import backoff, notifications
from jobqueue.clock import loop_time
from jobqueue.conf import DAY, Settings
from jobqueue.logs import get_logger
from jobqueue.states import FINAL, State
from jobqueue.store import due_work, history_pruning, minute_stats, promotion, reclaims, sweeps
from jobqueue.store.batches import Swept, in_batch
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import is_refused, is_transient
from jobqueue.store.notify import notify
from jobqueue.tasks import known, options_of
from jobqueue.worker.leadership.maintenance import Step

BATCH_SECONDS = 1.75  # kept by the server
CALL_SECONDS = 2.5  # kept here, by dropping the socket
LOCKED_SECONDS = 0.5  # until the next try at a due row that somebody holds
WORKERS_KEPT_SECONDS = TICKS_KEPT_SECONDS = 7 * DAY
log = get_logger()

type Act[T] = Callable[[AsyncConnection[Any], Sequence[T]], Awaitable[list[Swept]]]
type Pick[T] = Callable[[AsyncConnection[Any]], Awaitable[list[T]]]


class JobSteps:
    """The steps, and what they remember between their batches."""

    def __init__(
        self,
        session: Session,
        *,
        worker: UUID,
        settings: Settings,
        wake: Callable[[str, float], None],
        on_final: Callable[[Sequence[int]], None],
    ) -> None:
        """`on_final` gets the ids of the jobs that ended here."""
        self.session, self.worker, self.settings = session, worker, settings
        self.wake, self.on_final = wake, on_final
        self.actor = f"leader {worker}"
        ages = ((state, settings.retention.get(state)) for state in sorted(FINAL))
        self.retention = {str(state): age for state, age in ages if age is not None}
        self._last_event = 0  # where the pass through the events stands
        self.refused: set[int] = set()  # rows that the database would not let us change
        self._epoch: float | None = None  # the database's clock minus the loop's

    def steps(self) -> list[Step]:
        """The table. `look` costs one statement and asks for the others when they have work."""
        return [
            Step("look", self.look, interval=5.0),
            Step("promote", self.promote, limit=500),
            Step("reclaim", self.reclaim, limit=100),
            Step("expire", self.expire, limit=100),
            Step("prune", self.prune, limit=500),
            Step("minutes", self.write_minute, interval=60.0),
            Step("forget workers", self.forget_workers, limit=200, interval=300.0),
            Step("forget ticks", self.forget_ticks, limit=500, interval=600.0),
            Step("forget events", self.forget_events, limit=2000, interval=3600.0),
        ]

    def scheduled(self, at: float) -> None:
        """A job was enqueued that falls due at this moment of the database's clock."""
        now = loop_time()
        # Before the first look nothing is known of that clock; the look is under way then.
        self.wake("promote", now if self._epoch is None else max(at - self._epoch, now))

    async def look(self, limit: int) -> bool:
        """See what there is to do."""
        unknown = self.settings.unknown_task_seconds
        answer = await self.session.call(due_work.find, CALL_SECONDS, unknown, self.retention)
        now = loop_time()
        self._epoch = answer.now - now
        if answer.next_due is not None:
            self.wake("promote", answer.next_due - self._epoch)
        for name in ("reclaim", "expire", "prune"):
            if getattr(answer, name):
                self.wake(name, now)
        return False

    async def promote(self, limit: int) -> bool:
        """Due jobs become READY; then sleep until the next one is due."""
        queues = await self._batch(promotion.promote, limit)
        await self._tell(set(queues))
        if len(queues) == limit:
            return True
        wait = await self.session.call(promotion.next_due, CALL_SECONDS)
        if wait is not None:
            least = 0.0 if queues else LOCKED_SECONDS if wait <= 0 else 0.001
            self.wake("promote", loop_time() + max(wait, least))
        return False

    async def reclaim(self, limit: int) -> bool:
        """Claims of the dead and the silent end as LOST."""
        picked, swept = await self._pick_and_act(
            lambda connection: reclaims.lapsed(connection, limit, self.refused),
            lambda connection, rows: reclaims.reclaim(
                connection,
                [reclaims.Verdict(row.id, row.token, self._delay(row)) for row in rows],
                self.actor,
            ),
        )
        if swept:
            workers = sorted({str(job.worker) for job in swept})
            log.warning("jobs_reclaimed", count=len(swept), workers=workers)
        self._report(swept)
        for job in swept:
            if job.state == State.SCHEDULED:
                self.scheduled(job.run_at)
        await self._tell({job.queue for job in swept if job.state == State.READY})
        return picked == limit and bool(swept)

    async def expire(self, limit: int) -> bool:
        """Waiting jobs past their time end as DEAD."""
        unknown = self.settings.unknown_task_seconds
        picked, swept = await self._pick_and_act(
            lambda connection: sweeps.expirable(connection, limit, unknown, self.refused),
            lambda connection, ids: sweeps.expire(connection, ids, unknown, self.actor),
        )
        self._report(swept)
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

        picked, _ = await self._pick_and_act(
            lambda connection: sweeps.prunable(connection, state, age, limit, self.refused), act
        )
        if gone:
            log.debug("jobs_pruned", state=state, count=gone)
        return picked, gone

    async def write_minute(self, limit: int) -> bool:
        """The figures of the minute that is over, for the charts."""
        return bool(await self._batch(minute_stats.write))

    async def forget_workers(self, limit: int) -> bool:
        """Rows of processes that said their last word a week ago."""
        gone = await self._batch(
            history_pruning.forget_workers, self.worker, WORKERS_KEPT_SECONDS, limit
        )
        return bool(gone == limit)

    async def forget_ticks(self, limit: int) -> bool:
        """Ticks older than a week."""
        gone = await self._batch(history_pruning.forget_ticks, TICKS_KEPT_SECONDS, limit)
        return bool(gone == limit)

    async def forget_events(self, limit: int) -> bool:
        """One pass through the trail: notes on jobs that are gone, acts past their retention."""
        age = self.settings.retention["ACTS"]
        last = await self._batch(history_pruning.forget_events, self._last_event, age, limit)
        self._last_event = last or 0
        return last is not None

    def _report(self, swept: Sequence[Swept]) -> None:
        for job in swept:
            _say(job)
        if final := [job.id for job in swept if State(job.state) in FINAL]:
            self.on_final(final)

    async def _batch(self, verb: Callable[..., Any], *args: Any) -> Any:
        return await self.session.call(in_batch, CALL_SECONDS, BATCH_SECONDS, verb, *args)

    async def _pick_and_act[T](self, pick: Pick[T], act: Act[T]) -> tuple[int, list[Swept]]:
        """Pick rows and act on them in one transaction; one by one where the database refuses."""
        picked: list[T] = []

        async def both(connection: AsyncConnection[Any]) -> list[Swept]:
            picked.extend(await pick(connection))
            return await act(connection, picked) if picked else []

        try:
            swept: list[Swept] = await self._batch(both)
            return len(picked), swept
        except psycopg.Error as error:
            if not picked or not _is_about_data(error):
                raise
        swept = []
        for row in picked:
            try:
                swept += await self._batch(act, [row])
            except psycopg.Error as error:
                if not _is_about_data(error):
                    raise
                job = row if isinstance(row, int) else getattr(row, "id", 0)
                self.refused.add(job)
                log.error("maintenance_row_refused", job=job, error=repr(error))  # noqa: TRY400
        return len(picked), swept

    async def _tell(self, queues: set[str]) -> None:
        if queues and self.settings.notify:
            await self.session.call(notify, CALL_SECONDS, notifications.ready(queues))

    def _delay(self, row: reclaims.Lapsed) -> float:
        """The wait that a failure of this job would have had; never imports its module."""
        task = known(row.task)
        rule = row.options.get("backoff", options_of(task).get("backoff") if task else None)
        if isinstance(rule, str):
            module, _, name = rule.rpartition(".")
            rule = getattr(sys.modules.get(module), name, None)
        base, ceiling = self.settings.backoff_base_seconds, self.settings.backoff_max_seconds
        try:
            return backoff.delay(row.failures + 1, base=base, ceiling=ceiling, rule=rule)
        except Exception:
            log.warning("backoff_failed", job=row.id, task=row.task, exc_info=True)
            return backoff.delay(row.failures + 1, base=base, ceiling=ceiling)


def _is_about_data(error: psycopg.Error) -> bool:
    return error.sqlstate is not None and not is_transient(error) and not is_refused(error)


def _say(job: Swept) -> None:
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
