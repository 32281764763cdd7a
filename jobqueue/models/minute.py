"""What happened in each minute: read by the charts, so that no page counts the whole history."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Minute(models.Model):
    """The figures of one finished minute, for one queue or, under the empty name, for all.

    Waits are those of jobs that ended in this minute at their first attempt, in seconds.
    """

    at = models.DateTimeField(_("at"))
    queue = models.CharField(_("queue"), max_length=63, default="", db_default="")
    succeeded = models.IntegerField(default=0, db_default=0)
    dead = models.IntegerField(default=0, db_default=0)
    cancelled = models.IntegerField(default=0, db_default=0)
    failed = models.IntegerField(
        default=0, db_default=0, help_text=_("Failed attempts, those that are retried included.")
    )
    wait_p50 = models.FloatField(null=True)
    wait_p95 = models.FloatField(null=True)

    class Meta:
        verbose_name = _("minute")
        verbose_name_plural = _("minutes")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["at", "queue"], name="jobqueue_minute_once")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.queue or 'all'}"
