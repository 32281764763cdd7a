"""The job: one row holds everything a worker or an operator needs."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from jobqueue.models.moments import FIRST_MOMENT, LAST_MOMENT, is_sane
from jobqueue.models.stored_json import StoredJSONField, is_of_kind
from jobqueue.states import FINAL, State
from jobqueue.versions import UNDERSTANDS

STATE_LABELS = {
    State.SCHEDULED: _("Scheduled"),
    State.READY: _("Ready"),
    State.BLOCKED: _("Blocked"),
    State.RUNNING: _("Running"),
    State.SUCCEEDED: _("Succeeded"),
    State.DEAD: _("Dead"),
    State.CANCELLED: _("Cancelled"),
}

FINAL_STATES = sorted(state.value for state in FINAL)
_HOLDER_SET = Q(
    worker__isnull=False,
    lease_token__isnull=False,
    lease_expires_at__isnull=False,
    claimed_at__isnull=False,
)
_HOLDER_UNSET = Q(
    worker__isnull=True,
    lease_token__isnull=True,
    lease_expires_at__isnull=True,
    claimed_at__isnull=True,
    not_ending_since__isnull=True,
)
# As in `jobqueue.versions`, for the indexes.
_NEWER = Q(needs__gt=UNDERSTANDS)


class Job(models.Model):
    """One unit of work. Its state changes only along `jobqueue.states.TRANSITIONS`."""

    State = State

    id = models.BigAutoField(primary_key=True)
    task = models.TextField(_("task"))
    args = StoredJSONField(_("arguments"), default=list, db_default=[])
    kwargs = StoredJSONField(_("keyword arguments"), default=dict, db_default={})
    args_bytes = models.IntegerField(
        null=True,
        blank=True,
        help_text=_("The size of the arguments as JSON. Unknown for older jobs."),
    )
    signature = models.TextField(
        default="", db_default="", help_text=_("The parameters of the task when this was enqueued.")
    )
    queue = models.CharField(_("queue"), max_length=63, default="default", db_default="default")
    backend = models.TextField(default="default", db_default="default")
    priority = models.SmallIntegerField(_("priority"), default=0, db_default=0)
    options = StoredJSONField(
        default=dict, db_default={}, help_text=_("What the call itself overrode.")
    )

    state = models.CharField(
        _("state"),
        max_length=9,
        choices=list(STATE_LABELS.items()),
        default=State.READY,
        db_default=State.READY,
    )
    reason = models.TextField(_("reason"), default="", db_default="")
    run_at = models.DateTimeField(_("run at"), db_default=Now())
    hold_until = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    parked_at = models.DateTimeField(null=True, blank=True)

    attempts = models.IntegerField(_("attempts"), default=0, db_default=0)
    failures = models.IntegerField(_("failures"), default=0, db_default=0)
    max_attempts = models.IntegerField(_("attempts at most"), default=5, db_default=5)
    interruptions = models.IntegerField(default=0, db_default=0)
    snoozes = models.IntegerField(default=0, db_default=0)
    last_error = models.TextField(_("last error"), default="", db_default="")
    # What a worker must understand to touch the row: see `jobqueue.versions`.
    needs = models.SmallIntegerField(default=0, db_default=0)
    # Its last two attempts were lost with their process.
    suspect = models.BooleanField(default=False, db_default=False)

    unique_key = models.TextField(null=True, blank=True)  # noqa: DJ001  (NULL never conflicts)
    idempotency_key = models.TextField(null=True, blank=True)  # noqa: DJ001
    concurrency_key = models.TextField(null=True, blank=True)  # noqa: DJ001
    tenant = models.TextField(null=True, blank=True)  # noqa: DJ001
    parent = models.BigIntegerField(null=True, blank=True)
    traceparent = models.TextField(default="", db_default="")

    # The holder. No foreign key: every claim would lock the worker's row.
    worker = models.UUIDField(null=True, blank=True)
    lease_token = models.UUIDField(null=True, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    not_ending_since = models.DateTimeField(null=True, blank=True)

    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_by = models.TextField(default="", db_default="")
    cancel_reason = models.TextField(default="", db_default="")

    progress = StoredJSONField(null=True, blank=True)
    result = StoredJSONField(null=True, blank=True)

    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    claimed_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("cancel_job", "Can cancel jobs"),
            ("retry_job", "Can retry jobs"),
            ("run_job", "Can run scheduled jobs now"),
        ]
        constraints = [
            models.CheckConstraint(
                name="jobqueue_job_state", condition=Q(state__in=[s.value for s in State])
            ),
            models.CheckConstraint(
                name="jobqueue_job_running_has_holder",
                condition=(Q(state=State.RUNNING) & _HOLDER_SET)
                | (~Q(state=State.RUNNING) & _HOLDER_UNSET),
            ),
            models.CheckConstraint(
                name="jobqueue_job_final_has_finish",
                condition=Q(state__in=FINAL_STATES, finished_at__isnull=False)
                | (~Q(state__in=FINAL_STATES) & Q(finished_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="jobqueue_job_numbers",
                condition=Q(priority__gte=-100, priority__lte=100)
                & Q(attempts__gte=0, failures__gte=0, max_attempts__gte=1)
                & Q(failures__lte=F("attempts")),
            ),
            models.CheckConstraint(
                name="jobqueue_job_times",
                condition=Q(run_at__gt=FIRST_MOMENT, run_at__lt=LAST_MOMENT)
                & is_sane("hold_until")
                & is_sane("expires_at")
                & is_sane("parked_at"),
            ),
            models.CheckConstraint(
                name="jobqueue_job_options", condition=is_of_kind("options", "object")
            ),
        ]
        indexes = [
            models.Index(
                F("queue"),
                F("priority").desc(),
                F("run_at"),
                F("id"),
                name="jobqueue_job_claimable",
                condition=Q(state=State.READY, suspect=False, needs__lte=UNDERSTANDS),
            ),
            models.Index(
                F("suspect"),
                F("priority").desc(),
                F("run_at"),
                F("id"),
                name="jobqueue_job_ready_apart",
                condition=Q(state=State.READY) & (Q(suspect=True) | _NEWER),
            ),
            models.Index(
                fields=["run_at"],
                name="jobqueue_job_timed",
                condition=Q(state=State.SCHEDULED, parked_at__isnull=True, needs__lte=UNDERSTANDS),
            ),
            models.Index(
                fields=["parked_at"],
                name="jobqueue_job_later_apart",
                condition=Q(state=State.SCHEDULED) & (Q(parked_at__isnull=False) | _NEWER),
            ),
            models.Index(
                fields=["worker"], name="jobqueue_job_running", condition=Q(state=State.RUNNING)
            ),
            models.Index(
                fields=["state", "finished_at"],
                name="jobqueue_job_final",
                condition=Q(state__in=FINAL_STATES),
            ),
            models.Index(
                fields=["task", "state", "id"],
                name="jobqueue_job_task",
                condition=Q(state__in=FINAL_STATES),
            ),
            models.Index(
                fields=["id"], name="jobqueue_job_blocked", condition=Q(state=State.BLOCKED)
            ),
            models.Index(
                fields=["run_at"],
                name="jobqueue_job_retrying",
                condition=Q(state=State.SCHEDULED, failures__gt=0),
            ),
            models.Index(
                fields=["expires_at"],
                name="jobqueue_job_expiring",
                condition=Q(
                    expires_at__isnull=False,
                    state__in=[State.SCHEDULED, State.READY, State.BLOCKED],
                ),
            ),
            models.Index(
                F("queue"),
                F("task"),
                F("priority").desc(),
                F("run_at"),
                F("id"),
                name="jobqueue_job_parked_tasks",
                condition=Q(state=State.SCHEDULED, parked_at__isnull=False, needs__lte=UNDERSTANDS),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("admin:jobqueue_job_change", args=[self.pk])

    @property
    def is_final(self) -> bool:
        return self.state in FINAL
