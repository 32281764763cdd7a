"""Why a waiting job is not running, in words, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import queue_names
from jobqueue.conf import serves, settings
from jobqueue.insight import stats
from jobqueue.models import Job, Queue
from jobqueue.states import WAITING, IdleReason, Phase, State
from jobqueue.versions import CLAIMABLE, UNDERSTANDS

COUNTED_AHEAD = 10_000
IDLE: Mapping[str, Promise] = {
    IdleReason.SIGNALS: gettext_lazy("receivers of task signals lag behind"),
    IdleReason.ANSWERS: gettext_lazy("claims whose answer was lost are looked for"),
    IdleReason.OUTCOMES: gettext_lazy("outcomes wait to be written"),
    IdleReason.OUTAGE: gettext_lazy("the database does not answer"),
    IdleReason.MAX_JOBS: gettext_lazy("--max-jobs is reached, the last ones still run"),
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that a job waits for. `moment`: until when, or since when, where there is one."""

    text: str
    remedy: str = ""
    moment: datetime | None = None


def explain(job: Job, now: datetime) -> list[Cause]:
    """Return what keeps this job from running, the nearest cause first; none when nothing does."""
    if job.state not in WAITING:
        return []
    causes = list(_own(job, now))
    lease = stats.leader()
    if job.state == State.SCHEDULED and job.run_at <= now and not causes:
        led = lease is not None and lease.expires_at is not None and lease.expires_at > now
        remedy = "" if led else _("There is no leader. Run a worker without --no-leader.")
        causes.append(Cause(_("It is due and will become ready at the next poll."), remedy))
    causes += _queue(job)
    causes += _workers(job, now)
    if job.state == State.READY and not causes:
        causes += _ahead(job)
    return causes


def _own(job: Job, now: datetime) -> Iterator[Cause]:
    if job.needs > UNDERSTANDS:
        text = _("It needs newer code than this: only workers that have it take the job.")
        yield Cause(text, _("Deploy the newer code."))
    if job.state == State.BLOCKED:
        yield _key(job)
    if job.suspect:
        text = _("Its last two attempts were lost with their process.")
        yield Cause(text, _("Each worker runs one such job at a time."))
    if job.hold_until and job.hold_until > now:
        text = _("The process that ran it last may still touch it.")
        yield Cause(text, _("This resolves itself."), job.hold_until)
    if job.parked_at:
        text = _("No worker knows the task %(task)s yet.") % {"task": job.task}
        yield Cause(text, _("Deploy the code that has it, or cancel the job."), job.parked_at)
    elif job.state == State.SCHEDULED and job.run_at > now:
        if job.failures:
            text = _("It failed and is waiting for its next attempt.")
        else:
            text = _("It is not due yet.")
        yield Cause(text, _("“Run now” does not wait."), job.run_at)
    if job.expires_at and job.expires_at <= now:
        yield Cause(_("It has expired and will not run."), "", job.expires_at)


def _key(job: Job) -> Cause:
    text = _("Its key %(key)s is taken.") % {"key": job.concurrency_key or ""}
    holder = (
        stats.jobs()
        .filter(state=State.RUNNING, concurrency_key=job.concurrency_key)
        .order_by("claimed_at")
        .first()
    )
    if holder is not None:
        text = _("Its key %(key)s is held by job %(id)s.") % {
            "key": job.concurrency_key or "",
            "id": holder.pk,
        }
    return Cause(text, _("It becomes ready when the key is free."))


def _queue(job: Job) -> Iterator[Cause]:
    queue = Queue.objects.using(settings().database).filter(pk=job.queue).first()
    if queue is not None and queue.paused_at:
        if queue.paused_by:
            text = _("The queue %(queue)s was paused by %(who)s.")
        else:
            text = _("The queue %(queue)s is paused.")
        values = {"queue": job.queue, "who": queue.paused_by}
        yield Cause(text % values, _("Resume the queue."), queue.paused_at)


def _workers(job: Job, now: datetime) -> Iterator[Cause]:
    alive = [row for row in stats.workers(now, None, limit=500) if row.alive]
    serving = [row for row in alive if serves(row.worker.queues, job.queue)]
    if not alive:
        yield Cause(_("No worker is running."), _("Start one: manage.py runworker"))
    elif not serving:
        text = _("No running worker serves the queue %(queue)s.") % {"queue": job.queue}
        remedy = _("Start one: manage.py runworker --queues %(queue)s") % {"queue": job.queue}
        if queue_names.fault(job.queue):
            remedy = _("Add it to QUEUES of TASKS, or move its jobs to another queue.")
        yield Cause(text, remedy)
    elif all(row.worker.phase != Phase.RUNNING for row in serving):
        yield Cause(
            _("Every worker that serves its queue is stopping."), _("Wait for the new workers.")
        )
    elif all(row.worker.idle_reason for row in serving if row.worker.phase == Phase.RUNNING):
        reasons = sorted({row.worker.idle_reason for row in serving if row.worker.idle_reason})
        why = "; ".join(str(IDLE.get(reason, reason)) for reason in reasons)
        text = _("No worker that serves its queue takes jobs just now: %(why)s.") % {"why": why}
        yield Cause(text, _("Their logs say more (worker_idle)."))
    elif all(row.used >= row.worker.concurrency for row in serving):
        used = sum(row.used for row in serving)
        text = ngettext(
            "The one slot that serves its queue is in use.",
            "All %(n)s slots that serve its queue are in use.",
            used,
        )
        yield Cause(text % {"n": used}, _("Start more workers, or raise CONCURRENCY."))


AHEAD = f"""
SELECT count(*) FROM (
    (SELECT FROM jobqueue_job WHERE {CLAIMABLE} AND queue = %(queue)s
        AND priority > %(priority)s ORDER BY priority DESC, run_at, id LIMIT %(limit)s)
    UNION ALL
    (SELECT FROM jobqueue_job WHERE {CLAIMABLE} AND queue = %(queue)s
        AND priority = %(priority)s AND (run_at, id) < (%(run_at)s, %(id)s)
        ORDER BY priority DESC, run_at, id LIMIT %(limit)s)
) t
"""


def _ahead(job: Job) -> Iterator[Cause]:
    values = {
        "queue": job.queue,
        "priority": job.priority,
        "run_at": job.run_at,
        "id": job.pk,
        "limit": COUNTED_AHEAD,
    }
    (count,) = stats.row(AHEAD, values)
    if count >= COUNTED_AHEAD:
        shown = number_format(COUNTED_AHEAD, force_grouping=True)
        yield Cause(_("More than %(n)s jobs are ahead of it.") % {"n": shown})
    elif count:
        text = ngettext("%(n)s job is ahead of it.", "%(n)s jobs are ahead of it.", count)
        yield Cause(text % {"n": number_format(count, force_grouping=True)})
    else:
        yield Cause(_("It is next; a worker will take it at the next poll."))
