"""What operators and the leader did; not every transition."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class JobEvent(models.Model):
    """One act on a job or a queue: who did what, when, and why."""

    job = models.BigIntegerField(null=True, blank=True)
    queue = models.CharField(max_length=63, default="", db_default="")
    at = models.DateTimeField(_("at"), db_default=Now())
    kind = models.CharField(_("kind"), max_length=32)
    actor = models.TextField(_("actor"), default="", db_default="")
    note = models.TextField(_("note"), default="", db_default="")

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        indexes = [
            models.Index(fields=["job", "at"], name="jobqueue_jobevent_job"),
            models.Index(fields=["at"], name="jobqueue_jobevent_at"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} by {self.actor}"
