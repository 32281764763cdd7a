"""The leader's cron: due schedules become jobs, in one transaction per schedule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from jobqueue import notifications
from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.enqueueing.job_row import draft
from jobqueue.logs import get_logger
from jobqueue.payload import clean
from jobqueue.scheduling import cron
from jobqueue.states import AUTOMATIC
from jobqueue.store import schedules
from jobqueue.store.batches import in_batch
from jobqueue.store.connections import Session
from jobqueue.store.error_classes import is_transient
from jobqueue.tasks import UnknownTask, known
from jobqueue.worker.hints import send_hint
from jobqueue.worker.leadership.job_steps import BATCH_SECONDS, CALL_SECONDS
from jobqueue.worker.leadership.maintenance import Step
from jobqueue.worker.threads.bounded_calls import BoundedCalls
from jobqueue.worker.threads.resolving import resolve

STRIKES = 3
MUTED_SECONDS = 60.0  # between two tries at a schedule whose task this code does not have
IMPORT_SECONDS = 2.0  # a longer import goes on by itself, and the schedule waits for it
ERROR_LIMIT = 1000
log = get_logger()


class UnreadableSchedule(Exception):
    """SQL has stored something in the row that Python cannot read."""


class StillImporting(UnknownTask):
    """The import of the task's module takes long."""


class CronSteps:
    """The steps of cron, and what they remember between batches."""

    def __init__(
        self,
        session: Session,
        *,
        worker: UUID,
        settings: Settings,
        wake: Callable[[str, float], None],
    ) -> None:
        self.session, self.settings, self.wake = session, settings, wake
        self.actor = str(worker)
        self._muted: dict[int, float] = {}  # schedule -> when to try again
        self._imports = BoundedCalls("schedule-imports")

    def steps(self) -> list[Step]:
        """As for jobs: a cheap check, and a step that acts when there is work."""
        return [
            Step("schedules", self.plan_next, interval=6.0),
            Step("tick", self.fire, limit=20),
        ]

    def close(self) -> None:
        """Close what is used only while leading."""
        self._imports.close()

    async def plan_next(self, limit: int) -> bool:
        """Wake `fire` when the next tick is due."""
        now = loop_time()
        self._muted = {id: until for id, until in self._muted.items() if until > now}
        answer = await self.session.call(schedules.next_run, CALL_SECONDS, self._muted)
        if answer.unplanned:
            self.wake("tick", now)
        elif answer.at is not None:
            self.wake("tick", now + max(answer.at - answer.now, 0.0))
        return False

    async def fire(self, limit: int) -> bool:
        """Enqueue what is due. A failing schedule does not stop the others."""
        due = await self.session.call(schedules.due, CALL_SECONDS, limit, self._muted)
        transient: Exception | None = None
        queues: set[str] = set()
        for id, task in due:
            try:
                queues |= await self._fire_one(id, await self._import(task))
            except Exception as error:
                if not is_transient(error):
                    raise
                transient = transient or error
        if queues and self.settings.notify:
            await send_hint(self.session, CALL_SECONDS, notifications.ready(queues))
        if transient is not None:
            raise transient
        if len(due) == limit:
            return True
        return await self.plan_next(limit)

    async def _import(self, path: str) -> UnknownTask | None:
        """Make the task known, where jobs do so too: its module may ask the database, or take long.
        Return why it is not."""
        if known(path) is not None:
            return None
        try:
            await self._imports.call(partial(resolve, path), IMPORT_SECONDS)
        except UnknownTask as error:
            return error
        except TimeoutError:
            return StillImporting(f"importing {path} takes longer than {IMPORT_SECONDS:g} s")
        return None

    async def _fire_one(self, id: int, unknown: UnknownTask | None) -> set[str]:
        """Return the queues that have new jobs."""
        taken: list[schedules.Due] = []

        async def fire(connection: AsyncConnection[Any]) -> set[str]:
            schedule = await schedules.lock_due(connection, id)
            if schedule is None:
                return set()
            taken.append(schedule)
            return await self._enqueue(connection, schedule, unknown)

        try:
            return await self.session.call(in_batch, CALL_SECONDS, BATCH_SECONDS, fire)
        except Exception as error:
            if not taken or is_transient(error):
                raise
            await self._failed(taken[0], error)
            return set()

    async def _enqueue(
        self,
        connection: AsyncConnection[Any],
        schedule: schedules.Due,
        unknown: UnknownTask | None,
    ) -> set[str]:
        """Ticks, their jobs and the next plan, all in the transaction that holds the row."""
        if schedule.fault:
            raise UnreadableSchedule(schedule.fault)
        s, planned = schedule, schedule.next_run_at
        if planned is None:
            await schedules.plan(connection, s.id, cron.next_tick(s.cron, s.timezone, s.now), None)
            return set()
        ticks = cron.due_ticks(s.cron, s.timezone, planned, s.now, s.catch_up)
        if unknown is not None:
            raise unknown
        queues, row = set(), drafted(schedule, self.settings)
        for at in ticks:
            tick = await schedules.tick(connection, s.id, at, self.actor)
            if tick is not None:  # otherwise another leader has fired it
                job = await schedules.insert_job(connection, row)
                await schedules.link(connection, tick, job)
                queues.add(row["queue"])
                log.debug("schedule_fired", schedule=s.name, tick=at.isoformat(), job=job)
        if not ticks or ticks[0] != planned:
            skipped = {"since": planned.isoformat(), "catch_up": s.catch_up}
            log.warning("schedule_ticks_skipped", schedule=s.name, **skipped)
        # With a backlog of ticks the next one may be due already.
        backlog = s.catch_up == "all" and ticks
        after = ticks[-1] if backlog else s.now
        following = cron.next_tick(s.cron, s.timezone, after)
        await schedules.plan(connection, s.id, following, ticks[-1] if ticks else None)
        return queues

    async def _failed(self, schedule: schedules.Due, error: Exception) -> None:
        """Count a strike, except for an unknown task, which may come with the next deploy."""
        text = clean(f"{type(error).__name__}: {error}", ERROR_LIMIT)
        if isinstance(error, UnknownTask) and schedule.next_run_at is not None:
            patience = timedelta(seconds=self.settings.unknown_task_seconds)
            importing = isinstance(error, StillImporting)
            if importing or schedule.now - schedule.next_run_at < patience:
                log.warning("schedule_task_unknown", schedule=schedule.name, error=text)
                now = loop_time()
                self._muted[schedule.id] = now + (IMPORT_SECONDS if importing else MUTED_SECONDS)
                await self.session.call(schedules.note, CALL_SECONDS, schedule.id, text)
                return
        enabled = await self.session.call(
            schedules.strike,
            CALL_SECONDS,
            schedule,
            error=text,
            reason=f"{AUTOMATIC}{text}",
            next_run_at=_following(schedule),
            most=1 if isinstance(error, UnknownTask) else STRIKES,
        )
        if enabled:
            log.warning("schedule_failed", schedule=schedule.name, error=text)
        elif enabled is not None:
            log.error("schedule_disabled", schedule=schedule.name, error=text)


def drafted(schedule: schedules.Due, settings: Settings) -> dict[str, Any]:
    """Return the row of the job that this schedule makes, checked as any enqueue is."""
    task = known(schedule.task)
    if task is None:  # the row names another one since it was found due
        raise StillImporting(f"{schedule.task} is not imported yet")
    changes: dict[str, Any] = {"priority": schedule.priority}
    if schedule.queue:
        changes["queue_name"] = schedule.queue
    return draft(task.using(**changes), schedule.args, schedule.kwargs, settings)


def _following(schedule: schedules.Due) -> Any:
    try:
        return cron.next_tick(schedule.cron, schedule.timezone, schedule.now)
    except cron.CronError:
        return None
