"""What an operator asked to be done to all matching jobs; done in slices, by key."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class BulkOrder(models.Model):
    """One bulk act. It is not a job: it waits for no other work and needs no worker."""

    class State(models.TextChoices):
        """A REFUSED or CANCELLED order can be resumed by anyone with the verb's permission."""

        RUNNING = "RUNNING", pgettext_lazy("order", "running")
        DONE = "DONE", pgettext_lazy("order", "done")
        CANCELLED = "CANCELLED", pgettext_lazy("order", "cancelled")
        REFUSED = "REFUSED", pgettext_lazy("order", "refused")

    verb = models.CharField(_("verb"), max_length=32)
    # A `jobqueue.operations.selection.Selection`, with ages as moments.
    filter = models.JSONField(_("filter"))
    moment = models.DateTimeField(_("asked for as of"))  # jobs created later are left alone
    parameters = models.JSONField(default=dict, db_default={})
    nonce = models.CharField(max_length=64, unique=True)  # one order per submitted form
    # Whose permission is checked before each slice, and under whose name the jobs change: who
    # asked for it, or who resumed it since.
    asker_id = models.TextField()
    asker = models.TextField(_("asked by"))
    state = models.CharField(
        _("state"), max_length=9, choices=State, default=State.RUNNING, db_default=State.RUNNING
    )
    reason = models.TextField(_("reason"), default="", blank=True, db_default="")
    last_key = models.BigIntegerField(default=0, db_default=0)  # jobs up to this key are done
    expected = models.BigIntegerField(default=0, db_default=0)  # an estimate
    changed = models.BigIntegerField(_("changed"), default=0, db_default=0)
    asked = models.BigIntegerField(default=0, db_default=0)  # of these, running jobs asked to stop
    left = models.JSONField(default=dict, db_default={})
    trail = models.JSONField(default=list, db_default=[])  # who asked, cancelled, resumed
    created_at = models.DateTimeField(_("requested at"), db_default=Now())
    updated_at = models.DateTimeField(_("last slice"), db_default=Now())
    finished_at = models.DateTimeField(_("ended at"), null=True, blank=True)

    class Meta:
        verbose_name = _("bulk order")
        verbose_name_plural = _("bulk orders")
        default_permissions = ()  # its acts need the permission of its verb
        indexes = [
            models.Index(
                fields=["id"], name="jobqueue_bulkorder_open", condition=models.Q(state="RUNNING")
            )
        ]
        constraints = [
            models.CheckConstraint(
                name="jobqueue_bulkorder_state",
                condition=models.Q(state__in=["RUNNING", "DONE", "CANCELLED", "REFUSED"]),
            ),
            models.CheckConstraint(
                name="jobqueue_bulkorder_end",
                condition=models.Q(state="RUNNING", finished_at__isnull=True)
                | (~models.Q(state="RUNNING") & models.Q(finished_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.verb} #{self.pk}"
