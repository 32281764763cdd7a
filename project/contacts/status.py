"""What a page says about a job: one word, one sentence, and its progress."""

from dataclasses import dataclass

from django.utils import timezone
from django.utils.timesince import timeuntil

from jobqueue.models import Job
from jobqueue.states import FINAL, State
from project.contacts.models import Import, Outcome, Webhook


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a job in its user's words. `tone` is good, bad or empty."""

    word: str
    sentence: str = ""
    tone: str = ""
    job: Job | None = None
    done: int = 0
    total: int = 0

    @property
    def is_final(self) -> bool:
        return self.job is None or self.job.state in FINAL

    @property
    def can_cancel(self) -> bool:
        return not self.is_final and self.job is not None and not self.job.cancel_requested_at

    @property
    def percent(self) -> int:
        return min(100, self.done * 100 // self.total) if self.total else 0


def jobs_of(rows: list[Import] | list[Webhook]) -> dict[int | None, Job]:
    """Return the jobs of these rows that are still known, in one query."""
    ids = [row.job_id for row in rows if row.job_id]
    return {job.pk: job for job in Job.objects.filter(pk__in=ids)}


def of_import(upload: Import, job: Job | None) -> Status:
    match upload.outcome:
        case Outcome.IMPORTED:
            sentence = f"New contacts: {upload.added:,}; updated: {upload.updated:,}."
            return Status(word="imported", sentence=sentence, tone="good", job=job)
        case Outcome.REFUSED:
            sentence = f"Faulty lines: {upload.fault_count:,}. Nothing was imported."
            return Status(word="refused", sentence=sentence, tone="bad", job=job)
    return _of_job(job)


def of_webhook(webhook: Webhook, job: Job | None) -> Status:
    if webhook.delivered_at:
        return Status(word="delivered", tone="good", job=job)
    return _of_job(job)


def _of_job(job: Job | None) -> Status:
    if job is None:
        return Status(word="unknown", sentence="Its job has been cleared away.", tone="bad")
    match State(job.state):
        case State.RUNNING if job.cancel_requested_at:
            return _running(job, "stopping")
        case State.RUNNING:
            return _running(job, "running")
        case State.CANCELLED:
            by = f" by {job.cancel_requested_by}" if job.cancel_requested_by else ""
            return Status(word="cancelled", sentence=f"Stopped{by}; nothing was kept.", job=job)
        case State.DEAD:
            return Status(word="dead", sentence=job.last_error, tone="bad", job=job)
        case State.SUCCEEDED:
            return Status(word="done", tone="good", job=job)
        case _:
            return Status(word="waiting", sentence=_wait(job), job=job)


def _running(job: Job, word: str) -> Status:
    progress = job.progress or {}
    done, total = int(progress.get("done") or 0), int(progress.get("total") or 0)
    note = str(progress.get("note") or "")
    sentence = f"{note}: {done:,} of {total:,}" if total else note
    return Status(word=word, sentence=sentence, job=job, done=done, total=total)


def _wait(job: Job) -> str:
    if job.state == State.SCHEDULED and job.run_at > timezone.now():
        due = f"due in {timeuntil(job.run_at)}"
        if job.failures:
            return f"Attempt {job.attempts} failed ({job.last_error}); the next is {due}."
        return f"{due.capitalize()}."
    return "For a free worker."
