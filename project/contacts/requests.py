"""How the pages use the queue: each function stores its row and enqueues in one transaction."""

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from project.contacts import sample_data
from project.contacts.models import Import, Webhook
from project.contacts.partner import PLANS
from project.contacts.tasks import deliver_webhook, import_contacts

VISITOR = "you@example.com"


def request_import(name: str, content: bytes, receipt_to: str = VISITOR) -> Import:
    """Store a file and enqueue its import: both are committed, or neither is."""
    with transaction.atomic():
        upload = Import.objects.create(name=name[-200:], content=content, receipt_to=receipt_to)
        upload.job_id = int(import_contacts.enqueue(upload.pk).id)
        upload.save(update_fields=["job_id"])
    return upload


def request_sample(source: str) -> Import:
    """Import one of the shipped files, or many generated contacts."""
    if source == "big":
        content = sample_data.as_csv(sample_data.lines(sample_data.BIG_ROWS, prefix="person"))
        return request_import("big.csv", content)
    return request_import(source, (sample_data.FOLDER / source).read_bytes())


def request_webhook(plan: str, delay: int = 0) -> Webhook:
    """Store a message and enqueue its delivery, for later where a delay in seconds is given."""
    words, answers = PLANS[plan]
    later = timezone.now() + timedelta(seconds=delay) if delay else None
    with transaction.atomic():
        webhook = Webhook.objects.create(name=f"The partner {words}", plan=answers)
        webhook.job_id = int(deliver_webhook.using(run_after=later).enqueue(webhook.pk).id)
        webhook.save(update_fields=["job_id"])
    return webhook
