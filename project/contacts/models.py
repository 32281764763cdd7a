"""What the example site stores: contacts, their files, and webhooks to a partner."""

from django.db import models
from django.urls import reverse


class Outcome(models.TextChoices):
    """How an import ended. Written by its job, together with the contacts."""

    OPEN = "", "not yet"
    IMPORTED = "imported", "imported"
    REFUSED = "refused", "refused"


class Import(models.Model):
    """One file of contacts, and the outcome of its import."""

    name = models.CharField("file", max_length=200)
    content = models.BinaryField()
    receipt_to = models.EmailField("receipt to")
    created_at = models.DateTimeField(auto_now_add=True)

    # No foreign key: the queue prunes old jobs, and the import outlives its job.
    job_id = models.BigIntegerField(null=True, editable=False)

    outcome = models.CharField(max_length=8, choices=Outcome, default=Outcome.OPEN, blank=True)
    rows = models.PositiveIntegerField(default=0)
    added = models.PositiveIntegerField(default=0)
    faults = models.JSONField(default=list, blank=True)  # the first ones, as [line, reason]
    fault_count = models.PositiveIntegerField(default=0)
    finished_at = models.DateTimeField(null=True, blank=True)
    receipt_sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("contacts:import", args=[self.pk])

    @property
    def updated(self) -> int:
        """How many of its contacts existed before."""
        return self.rows - self.added


class Contact(models.Model):
    """A person, known by one e-mail address."""

    email = models.EmailField("e-mail", unique=True)
    name = models.CharField(max_length=200)
    company = models.CharField(max_length=200, blank=True)
    phone = models.CharField(max_length=50, blank=True)
    source = models.ForeignKey(
        Import, on_delete=models.CASCADE, related_name="contacts", help_text="The first to bring it"
    )

    class Meta:
        ordering = ("email",)

    def __str__(self) -> str:
        return self.email


class Webhook(models.Model):
    """A message for the partner's server."""

    name = models.CharField(max_length=200)
    plan = models.JSONField(help_text="What the partner answers, call by call; the last for ever")
    job_id = models.BigIntegerField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.name


class Call(models.Model):
    """One call that reached the partner, according to the partner's log."""

    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="calls")
    key = models.CharField(max_length=100)
    status = models.PositiveSmallIntegerField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.webhook}: {self.status}"
