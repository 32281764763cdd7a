"""The history: one row per concluded attempt."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.models.job import Job
from jobqueue.states import COUNTED, Outcome

COUNTED_OUTCOMES = sorted(outcome.value for outcome in COUNTED)

OUTCOME_LABELS = {
    Outcome.SUCCEEDED: _("Succeeded"),
    Outcome.FAILED: _("Failed"),
    Outcome.TIMED_OUT: _("Timed out"),
    Outcome.CANCELLED: _("Cancelled"),
    Outcome.INTERRUPTED: _("Interrupted"),
    Outcome.SNOOZED: _("Snoozed"),
    Outcome.LOST: _("Lost"),
}


class Attempt(models.Model):
    """How one claim ended. Written in the statement that changes the job, by its holder or, when
    the lease lapsed, by the leader."""

    Outcome = Outcome
    HOLDER = "holder"
    LEADER = "leader"

    token = models.UUIDField(primary_key=True)
    # No constraint in the database: each finish would lock and check the job's row once more.
    job = models.ForeignKey(
        Job,
        on_delete=models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="attempt_set",
    )
    number = models.IntegerField(_("number"))
    worker = models.UUIDField(null=True)
    outcome = models.CharField(_("outcome"), max_length=11, choices=list(OUTCOME_LABELS.items()))
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"))
    error_class = models.TextField(_("error"), default="", db_default="")
    error_message = models.TextField(default="", db_default="")
    traceback = models.TextField(default="", db_default="")
    recorded_by = models.CharField(max_length=6, default=HOLDER, db_default=HOLDER)
    late_outcome = models.CharField(max_length=11, default="", db_default="")

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="jobqueue_attempt_number"),
            models.CheckConstraint(
                name="jobqueue_attempt_outcome",
                condition=models.Q(outcome__in=[o.value for o in Outcome]),
            ),
        ]
        indexes = [
            models.Index(
                fields=["finished_at"],
                name="jobqueue_attempt_failed",
                condition=models.Q(outcome__in=COUNTED_OUTCOMES),
            )
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"
