"""Cron: which task is enqueued when."""

from typing import Any, Self

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobqueue.models.moments import is_sane
from jobqueue.models.stored_json import StoredJSONField, is_of_kind

PLANNED_FROM = ("cron", "timezone", "enabled")


class Schedule(models.Model):
    """One recurring job. The leader enqueues it at each tick, once, whoever leads."""

    class CatchUp(models.TextChoices):
        """What happens to ticks missed while no leader was running."""

        SKIP = "skip", _("skip missed ticks")
        ONCE = "once", _("one job for all missed ticks")
        ALL = "all", _("one job for each missed tick")

    class Origin(models.TextChoices):
        """Who owns the row's definition."""

        CODE = "code", _("declared in code")
        ADMIN = "admin", _("made by an operator")

    name = models.CharField(_("name"), max_length=200, unique=True)
    task = models.TextField(_("task"))
    args = StoredJSONField(_("arguments"), default=list, blank=True, db_default=[])
    kwargs = StoredJSONField(_("keyword arguments"), default=dict, blank=True, db_default={})
    signature = models.TextField(
        default="",
        db_default="",
        blank=True,
        editable=False,
        help_text=_("The parameters of the task when the arguments were stored."),
    )
    cron = models.TextField(_("cron expression"))
    timezone = models.CharField(_("time zone"), max_length=63, default="UTC", db_default="UTC")
    queue = models.CharField(_("queue"), max_length=63, default="", blank=True, db_default="")
    priority = models.SmallIntegerField(_("priority"), default=0, db_default=0)
    enabled = models.BooleanField(_("enabled"), default=True, db_default=True)
    disabled_reason = models.TextField(
        _("why it is disabled"), default="", blank=True, db_default=""
    )
    catch_up = models.CharField(
        _("after downtime"),
        max_length=4,
        choices=CatchUp,
        default=CatchUp.ONCE,
        db_default=CatchUp.ONCE,
    )
    origin = models.CharField(
        max_length=5, choices=Origin, default=Origin.ADMIN, db_default=Origin.ADMIN, editable=False
    )
    strikes = models.IntegerField(default=0, db_default=0, editable=False)
    last_error = models.TextField(_("last error"), default="", blank=True, db_default="")
    next_run_at = models.DateTimeField(_("next run"), null=True, blank=True)
    last_run_at = models.DateTimeField(_("last run"), null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [("run_schedule", "Can run schedules now")]
        constraints = [
            models.CheckConstraint(
                name="jobqueue_schedule_times",
                condition=is_sane("next_run_at") & is_sane("last_run_at"),
            ),
            models.CheckConstraint(
                name="jobqueue_schedule_arguments",
                condition=is_of_kind("args", "array") & is_of_kind("kwargs", "object"),
            ),
        ]
        indexes = [
            models.Index(
                fields=["next_run_at"],
                name="jobqueue_schedule_due",
                condition=models.Q(enabled=True, next_run_at__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, **options: Any) -> None:
        """Save. A new expression or zone, or enabling it, makes a new plan: the next matching time;
        the change itself never fires it."""
        before = getattr(self, "_planned_from", None)
        now = tuple(getattr(self, name) for name in PLANNED_FROM)
        if before is not None and before != now:
            self.next_run_at = None  # the leader makes the plan
            if self.enabled:
                self.strikes, self.disabled_reason, self.last_error = 0, "", ""
            if options.get("update_fields") is not None:
                reset = {"next_run_at", "strikes", "disabled_reason", "last_error"}
                options["update_fields"] = {*options["update_fields"], *reset}
        super().save(**options)
        self._planned_from = now

    @classmethod
    def from_db(cls, *values: Any, **options: Any) -> Self:
        """Remember what the plan was made from."""
        row = super().from_db(*values, **options)
        if row.__dict__.keys() >= set(PLANNED_FROM):  # else some of it is deferred
            row._planned_from = tuple(getattr(row, name) for name in PLANNED_FROM)
        return row


class ScheduleTick(models.Model):
    """One tick of a schedule and the job it made. Its key is what makes a tick happen once."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="ticks")
    tick_at = models.DateTimeField(_("tick"))
    job = models.BigIntegerField(null=True)
    fired_at = models.DateTimeField(_("fired at"), db_default=Now())
    fired_by = models.TextField(_("fired by"), default="", db_default="")

    class Meta:
        verbose_name = _("tick")
        verbose_name_plural = _("ticks")
        constraints = [
            models.UniqueConstraint(
                fields=["schedule", "tick_at"], name="jobqueue_scheduletick_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.tick_at:%Y-%m-%d %H:%M:%S%z}"
