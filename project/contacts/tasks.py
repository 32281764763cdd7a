"""The site's jobs."""

from itertools import batched

from django.core.mail import EmailMessage
from django.tasks import task
from django.template.loader import render_to_string
from django.utils import timezone

from jobqueue.context import JobContext
from jobqueue.exceptions import PermanentError, RetryLater
from project.contacts import csvfile, partner
from project.contacts.csvfile import Fault, Row
from project.contacts.models import Contact, Import, Outcome, Webhook

BATCH = 500
LINES_A_LOOK = 1_000
FAULTS_KEPT = 100


@task(takes_context=True, queue_name="imports", atomic=True, max_attempts=3, timeout=600)
def import_contacts(context: JobContext, import_id: int) -> dict[str, int | str]:
    """Import a whole file, or none of it.

    `atomic` puts everything below into one transaction with the job's success: an interrupted or
    cancelled attempt changes nothing, and the next one starts from scratch.
    """
    upload = locked(import_id)
    if upload.outcome:
        return {"outcome": upload.outcome}  # enqueued twice: the other job was first
    rows, faults = check(context, bytes(upload.content))
    if faults:
        refuse(upload, faults)
    else:
        store(context, upload, rows)
    # Inserted in this same transaction: a receipt for exactly those imports that are committed.
    send_receipt.enqueue(upload.pk)
    return {"outcome": upload.outcome, "rows": upload.rows, "faults": upload.fault_count}


def locked(import_id: int) -> Import:
    try:
        return Import.objects.select_for_update().get(pk=import_id)
    except Import.DoesNotExist:
        raise PermanentError(f"Import {import_id} was deleted.") from None


def check(context: JobContext, data: bytes) -> tuple[list[Row], list[Fault]]:
    """Read the whole file before anything is written."""
    rows: list[Row] = []
    faults: list[Fault] = []
    lines = data.count(b"\n") or 1
    for number, item in enumerate(csvfile.read(data)):
        if number % LINES_A_LOOK == 0:
            context.raise_if_cancelled()
            context.progress(number, lines, "checking")
        if isinstance(item, Row):
            rows.append(item)
        else:
            faults.append(item)
    return rows, faults


def refuse(upload: Import, faults: list[Fault]) -> None:
    """Record why. The file's fault is not the job's: the job succeeds, and no retry could help."""
    upload.outcome = Outcome.REFUSED
    upload.finished_at = timezone.now()
    upload.fault_count = len(faults)
    upload.faults = [[fault.line, fault.reason] for fault in faults[:FAULTS_KEPT]]
    upload.save(update_fields=["outcome", "finished_at", "fault_count", "faults"])


def store(context: JobContext, upload: Import, rows: list[Row]) -> None:
    """Write the contacts batch by batch, then record that they are stored."""
    # In the order of the unique key: two imports that share contacts lock them in the same order.
    ordered = sorted(rows, key=lambda row: row.email)
    context.progress(0, len(ordered), "importing")
    done = 0
    for batch in batched(ordered, BATCH, strict=False):
        context.raise_if_cancelled()
        Contact.objects.bulk_create(
            [
                Contact(
                    email=row.email,
                    name=row.name,
                    company=row.company,
                    phone=row.phone,
                    source=upload,
                )
                for row in batch
            ],
            update_conflicts=True,
            unique_fields=["email"],
            update_fields=["name", "company", "phone"],
        )
        done += len(batch)
        context.progress(done, len(ordered), "importing")
    upload.outcome = Outcome.IMPORTED
    upload.finished_at = timezone.now()
    upload.rows = done
    upload.added = upload.contacts.count()
    upload.save(update_fields=["outcome", "finished_at", "rows", "added"])


@task(queue_name="mail", atomic=True, max_attempts=8, timeout=60)
def send_receipt(import_id: int) -> str:
    """Send the uploader the outcome, once.

    A mail cannot be taken back, so a crash between sending and commit sends it again, with the
    same Message-ID, by which mailboxes recognise it.
    """
    upload = locked(import_id)
    if upload.receipt_sent_at:
        return "sent before"
    domain = "contacts.example"
    EmailMessage(
        subject=f"{upload.name}: {upload.get_outcome_display()}",
        body=render_to_string("contacts/receipt.txt", {"import": upload}),
        from_email=f"Contacts <receipts@{domain}>",
        to=[upload.receipt_to],
        headers={"Message-ID": f"<import-{upload.pk}.receipt@{domain}>"},
    ).send()
    upload.receipt_sent_at = timezone.now()
    upload.save(update_fields=["receipt_sent_at"])
    return "sent"


@task(takes_context=True, max_attempts=4, timeout=30, backoff=2)
async def deliver_webhook(context: JobContext, webhook_id: int) -> int:
    """Deliver one message; the partner's answer decides what happens to the job."""
    try:
        webhook = await Webhook.objects.aget(pk=webhook_id)
    except Webhook.DoesNotExist:
        raise PermanentError(f"Webhook {webhook_id} was deleted.") from None
    # The key is the same in every attempt, so the partner acts once even if its answer gets lost.
    answer = await partner.post(webhook, key=context.key)
    if answer.retry_after is not None:
        raise RetryLater(answer.retry_after, f"the partner is busy: {answer}")
    if answer.is_client_error:
        raise PermanentError(f"the partner will never take this: {answer}")
    if answer.is_server_error:
        raise partner.PartnerError(f"the partner failed: {answer}")
    webhook.delivered_at = timezone.now()
    await webhook.asave(update_fields=["delivered_at"])
    return answer.status
