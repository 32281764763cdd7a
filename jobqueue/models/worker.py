"""The worker processes, and the lease of the one that leads."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobqueue.states import Phase


class Worker(models.Model):
    """One worker process. Its id is new at every start, so that no process owns what its
    predecessor held."""

    id = models.UUIDField(primary_key=True)
    name = models.TextField(_("name"), default="", db_default="")
    hostname = models.TextField(default="", db_default="")
    pid = models.IntegerField()
    # What the operating system needs to certify a death: see `jobqueue.worker.process.liveness`.
    pid_started = models.BigIntegerField(null=True)
    pid_namespace = models.TextField(default="", db_default="")
    time_namespace = models.TextField(default="", db_default="")
    boot_id = models.TextField(default="", db_default="")
    supervisor = models.TextField(default="", db_default="")
    version = models.TextField(default="", db_default="")
    # The highest `Job.needs` that its code can deal with.
    understands = models.SmallIntegerField(default=0, db_default=0)
    may_lead = models.BooleanField(default=True, db_default=True)
    queues = models.JSONField(_("queues"), default=list, db_default=[])
    concurrency = models.IntegerField(_("concurrency"), default=0, db_default=0)
    phase = models.CharField(
        _("phase"), max_length=10, default=Phase.STARTING, db_default=Phase.STARTING
    )
    # Why it claims nothing although jobs may wait, as one word: see IdleReason.
    idle_reason = models.CharField(
        _("takes no jobs"), max_length=10, default="", db_default="", blank=True
    )
    signals_dropped = models.IntegerField(_("signals dropped"), default=0, db_default=0)
    wake = models.TextField(_("woken by"), default="", db_default="")
    started_at = models.DateTimeField(_("started at"), db_default=Now())
    last_seen_at = models.DateTimeField(_("last seen"), db_default=Now())
    died_at = models.DateTimeField(_("died at"), null=True, blank=True)
    stop_report = models.JSONField(null=True, blank=True)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return self.name or f"{self.hostname}:{self.pid}"


class LeaderLease(models.Model):
    """Who leads, until when. `term` only ever rises; resigning empties the row."""

    name = models.CharField(max_length=63, primary_key=True)
    holder = models.UUIDField(_("holder"), null=True, blank=True)
    term = models.BigIntegerField(_("term"), default=0, db_default=0)
    acquired_at = models.DateTimeField(_("acquired at"), null=True, blank=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)

    class Meta:
        verbose_name = _("leader lease")
        verbose_name_plural = _("leader leases")
        constraints = [
            models.CheckConstraint(
                name="jobqueue_leaderlease_whole",
                condition=models.Q(
                    holder__isnull=True, acquired_at__isnull=True, expires_at__isnull=True
                )
                | models.Q(
                    holder__isnull=False, acquired_at__isnull=False, expires_at__isnull=False
                ),
            )
        ]

    def __str__(self) -> str:
        return f"{self.name}, term {self.term}"
