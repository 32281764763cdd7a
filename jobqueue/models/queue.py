"""What an operator set for a queue. A queue without a row is not paused."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Queue(models.Model):
    """One queue by name, and whether it is paused."""

    name = models.CharField(_("name"), max_length=63, primary_key=True)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    paused_by = models.TextField(_("paused by"), default="", db_default="")

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        permissions = [("pause_queue", "Can pause and resume queues")]

    def __str__(self) -> str:
        return self.name
