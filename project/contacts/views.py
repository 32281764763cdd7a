"""The pages. While something is unfinished they have `data-live`, and live.js refreshes them."""

from datetime import timedelta

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobqueue import operations
from project.contacts import sample_data, status
from project.contacts.forms import SOURCES, SampleForm, UploadForm, WebhookForm
from project.contacts.models import Contact, Import, Webhook
from project.contacts.requests import request_import, request_sample, request_webhook

IMPORTS_SHOWN = 10
WEBHOOKS_SHOWN = 30
CONTACTS_A_PAGE = 25
RECEIPT_AWAITED = timedelta(minutes=1)


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    """Upload a file; see the recent imports and the contacts."""
    form = UploadForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        file = form.cleaned_data["file"]
        return redirect(request_import(file.name, file.read(), form.cleaned_data["receipt_to"]))
    imports = list(Import.objects.defer("content")[:IMPORTS_SHOWN])
    jobs = status.jobs_of(imports)
    rows = [(upload, status.of_import(upload, jobs.get(upload.job_id))) for upload in imports]
    context = {
        "form": form,
        "sources": SOURCES,
        "samples": [sample_data.GOOD, sample_data.FAULTY],
        "imports": rows,
        "page": Paginator(Contact.objects.all(), CONTACTS_A_PAGE).get_page(request.GET.get("page")),
        "is_live": any(not state.is_final for _, state in rows),
    }
    code = 422 if form.errors else 200
    return render(request, "contacts/index.html", context, status=code)


@require_POST
def import_sample(request: HttpRequest) -> HttpResponse:
    """Import a shipped file with one click."""
    form = SampleForm(request.POST)
    if not form.is_valid():
        raise Http404("There is no such sample.")
    return redirect(request_sample(form.cleaned_data["source"]))


@require_GET
def download(request: HttpRequest, name: str) -> FileResponse:
    """Download a shipped file."""
    file = f"{name}.csv"
    if file not in (sample_data.GOOD, sample_data.FAULTY):
        raise Http404("There is no such sample.")
    return FileResponse((sample_data.FOLDER / file).open("rb"), as_attachment=True)


@require_GET
def show_import(request: HttpRequest, pk: int) -> HttpResponse:
    """One import: its progress or its outcome."""
    upload = get_object_or_404(Import.objects.defer("content"), pk=pk)
    state = status.of_import(upload, status.jobs_of([upload]).get(upload.job_id))
    is_receipt_due = (
        upload.finished_at is not None
        and upload.receipt_sent_at is None
        and timezone.now() - upload.finished_at < RECEIPT_AWAITED
    )
    context = {
        "import": upload,
        "status": state,
        "contacts": upload.contacts.all()[:CONTACTS_A_PAGE],
        "is_receipt_due": is_receipt_due,
        "is_live": not state.is_final or is_receipt_due,
    }
    return render(request, "contacts/import.html", context)


@require_POST
def cancel_import(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop an import: a waiting one at once, a running one as soon as its job checks."""
    upload = get_object_or_404(Import.objects.only("job_id"), pk=pk)
    by = request.user.get_username() or "a visitor"
    if upload.job_id and operations.cancel(upload.job_id, by=by, reason="cancel button").changed:
        messages.success(request, "The import was asked to stop; what it had written is undone.")
    else:
        messages.warning(request, "Too late to cancel: see below.")
    return redirect(upload)


@require_http_methods(["GET", "HEAD", "POST"])
def webhooks(request: HttpRequest) -> HttpResponse:
    """Send a webhook to a partner that misbehaves on request; see every attempt."""
    form = WebhookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        request_webhook(form.cleaned_data["plan"], form.cleaned_data["delay"])
        return redirect("contacts:webhooks")
    recent = list(Webhook.objects.prefetch_related("calls")[:WEBHOOKS_SHOWN])
    jobs = status.jobs_of(recent)
    rows = [(webhook, status.of_webhook(webhook, jobs.get(webhook.job_id))) for webhook in recent]
    context = {
        "form": form,
        "webhooks": rows,
        "is_live": any(not state.is_final for _, state in rows),
    }
    code = 422 if form.errors else 200
    return render(request, "contacts/webhooks.html", context, status=code)
