"""The example site: what its pages store and enqueue, and what its jobs do to the contacts."""

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core import mail
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from jobqueue import operations, results
from jobqueue.context import Control, JobContext
from jobqueue.exceptions import JobCancelled, PermanentError, RetryLater
from jobqueue.models import Job
from project.contacts import forms, partner, sample_data, tasks
from project.contacts.models import Contact, Import, Outcome, Webhook
from project.contacts.requests import request_import, request_webhook

pytestmark = pytest.mark.django_db

HEADER = b"name,email,company,phone\n"
TWO = HEADER + b"Ada,ada@x.example,Ada Ltd,1\nBo,bo@x.example,,\n"


def upload(client: Client, content: bytes, **more: str) -> Any:
    file = SimpleUploadedFile("people.csv", content, content_type="text/csv")
    return client.post("/", {"file": file, "receipt_to": "me@x.example"} | more)


def context_of(job_id: int | None, control: Control | None = None) -> JobContext:
    result = results.load(str(job_id))
    return JobContext(task_result=result, control=control or Control())


def run_import(row: Import, control: Control | None = None) -> None:
    """Run the job as a worker does: its handler in one transaction."""
    context = context_of(row.job_id, control)
    with transaction.atomic():
        tasks.import_contacts.func(context, row.pk)
    row.refresh_from_db()


class TestUpload:
    def test_it_stores_the_file_and_enqueues_its_import(self, client: Client) -> None:
        response = upload(client, TWO)
        (row,) = Import.objects.all()
        assert response.headers["Location"] == f"/imports/{row.pk}/"
        assert (row.name, bytes(row.content), row.receipt_to) == ("people.csv", TWO, "me@x.example")
        (job,) = Job.objects.all()
        assert (job.pk, job.task, job.queue, job.args) == (
            row.job_id,
            "project.contacts.tasks.import_contacts",
            "imports",
            [row.pk],
        )

    @pytest.mark.django_db(transaction=True)
    def test_a_fault_after_the_enqueue_takes_the_file_and_its_job_back(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save = Import.save

        def fail_once_the_job_is_there(row: Import, **options: object) -> None:
            if Job.objects.exists():
                raise RuntimeError("after the enqueue")
            save(row, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Import, "save", fail_once_the_job_is_there)
        with pytest.raises(RuntimeError, match="after the enqueue"):
            upload(client, TWO)
        assert not Import.objects.exists()
        assert not Job.objects.exists()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "The file is empty."),
            (b"x" * (forms.MAX_BYTES + 1), "The file has 10.0 MB; at most 10 MB are taken."),
        ],
        ids=["empty", "too large"],
    )
    def test_a_file_that_it_will_not_take_is_told_why_and_enqueues_nothing(
        self, client: Client, content: bytes, message: str
    ) -> None:
        response = upload(client, content)
        assert response.status_code == 422
        assert message in response.content.decode()
        assert not Job.objects.exists()

    def test_an_address_that_is_none_is_refused(self, client: Client) -> None:
        response = upload(client, TWO, receipt_to="nobody")
        assert response.status_code == 422
        assert not Import.objects.exists()

    @pytest.mark.parametrize("source", [sample_data.GOOD, sample_data.FAULTY, "big"])
    def test_a_sample_is_imported_by_one_click(self, client: Client, source: str) -> None:
        client.post("/imports/sample/", {"source": source})
        (row,) = Import.objects.all()
        assert row.job_id == Job.objects.get().pk

    def test_an_unknown_sample_is_not_found(self, client: Client) -> None:
        assert client.post("/imports/sample/", {"source": "../x"}).status_code == 404
        assert client.get("/samples/other.csv").status_code == 404

    def test_the_samples_can_be_downloaded(self, client: Client) -> None:
        response = client.get(f"/samples/{sample_data.GOOD}")
        stored = (sample_data.FOLDER / sample_data.GOOD).read_bytes()
        assert b"".join(response) == stored


class TestImportJob:
    def test_it_imports_every_contact_and_enqueues_the_receipt(self) -> None:
        row = request_import("people.csv", TWO)
        run_import(row)
        assert list(Contact.objects.values_list("name", "email", "company", "phone")) == [
            ("Ada", "ada@x.example", "Ada Ltd", "1"),
            ("Bo", "bo@x.example", "", ""),
        ]
        assert (row.outcome, row.rows, row.added, row.updated) == (Outcome.IMPORTED, 2, 2, 0)
        receipt = Job.objects.get(queue="mail")
        assert (receipt.task, receipt.args) == ("project.contacts.tasks.send_receipt", [row.pk])

    def test_it_tells_its_progress_up_to_the_end(self) -> None:
        row = request_import("people.csv", (sample_data.FOLDER / sample_data.GOOD).read_bytes())
        control, seen = Control(), []
        control.on_progress = lambda: seen.append(json.loads(control.progress or "{}"))
        run_import(row, control)
        assert len(seen) > 10
        assert (seen[-1]["done"], seen[-1]["total"]) == (4000, 4000)

    def test_a_faulty_file_is_refused_with_its_lines_and_nothing_is_imported(
        self, client: Client
    ) -> None:
        row = request_import("bad.csv", (sample_data.FOLDER / sample_data.FAULTY).read_bytes())
        run_import(row)
        assert (row.outcome, row.fault_count) == (Outcome.REFUSED, 7)
        assert [line for line, _ in row.faults] == [502, 1002, 1502, 2002, 2502, 3002, 3502]
        assert not Contact.objects.exists()
        page = client.get(row.get_absolute_url()).content.decode()
        assert "Faulty lines: 7. Nothing was imported." in page
        assert "“not an address” is not an e-mail address." in page

    def test_of_very_many_faults_the_first_are_kept_and_all_are_counted(self) -> None:
        row = request_import("bad.csv", HEADER + b"x\n" * 250)
        run_import(row)
        assert (len(row.faults), row.fault_count) == (tasks.FAULTS_KEPT, 250)

    def test_known_addresses_are_updated_and_keep_their_first_file(self) -> None:
        first = request_import("people.csv", TWO)
        run_import(first)
        second = request_import("more.csv", HEADER + b"Ada L,ADA@x.example,,\nCy,cy@x.example,,\n")
        run_import(second)
        assert (second.rows, second.added, second.updated) == (2, 1, 1)
        ada = Contact.objects.get(email="ada@x.example")
        assert (ada.name, ada.company, ada.source) == ("Ada L", "", first)

    def test_a_cancel_in_the_middle_leaves_nothing(self) -> None:
        row = request_import("people.csv", (sample_data.FOLDER / sample_data.GOOD).read_bytes())
        control = Control()

        def cancel_once_something_is_written() -> None:
            control.cancelled = control.cancelled or Contact.objects.exists()

        control.on_progress = cancel_once_something_is_written
        with pytest.raises(JobCancelled):
            run_import(row, control)
        assert control.cancelled
        assert not Contact.objects.exists()
        row.refresh_from_db()
        assert row.outcome == Outcome.OPEN

    def test_a_second_job_for_the_same_file_changes_nothing(self) -> None:
        row = request_import("people.csv", TWO)
        run_import(row)
        run_import(row)
        assert (row.rows, row.added) == (2, 2)
        assert Job.objects.filter(queue="mail").count() == 1

    def test_a_deleted_import_is_dead_at_once(self) -> None:
        row = request_import("people.csv", TWO)
        Import.objects.all().delete()
        with pytest.raises(PermanentError, match="was deleted"):
            tasks.import_contacts.func(context_of(row.job_id), 0)


class TestReceipt:
    def test_it_is_sent_once_and_says_what_was_imported(self) -> None:
        row = request_import("people.csv", TWO, "me@x.example")
        run_import(row)
        assert tasks.send_receipt.func(row.pk) == "sent"
        assert tasks.send_receipt.func(row.pk) == "sent before"
        (letter,) = mail.outbox
        assert (letter.subject, letter.to) == ("people.csv: imported", ["me@x.example"])
        assert "Contacts: 2 (new: 2, updated: 0)." in letter.body
        row.refresh_from_db()
        assert row.receipt_sent_at is not None

    def test_of_a_refused_file_it_names_the_lines(self) -> None:
        row = request_import("<bad>.csv", HEADER + b"Ada,nobody,,\n")
        run_import(row)
        tasks.send_receipt.func(row.pk)
        assert "Your file <bad>.csv was refused." in mail.outbox[0].body
        assert "line 2: “nobody” is not an e-mail address." in mail.outbox[0].body

    def test_a_second_letter_after_a_crash_bears_the_same_message_id(self) -> None:
        row = request_import("people.csv", TWO)
        run_import(row)
        for _ in range(2):
            tasks.send_receipt.func(row.pk)
            Import.objects.update(receipt_sent_at=None)  # as if the commit had been lost
        first, second = mail.outbox
        assert first.extra_headers["Message-ID"] == second.extra_headers["Message-ID"]


class TestImportPage:
    def test_it_shows_how_far_the_job_is_and_offers_to_cancel(self, client: Client) -> None:
        row = request_import("people.csv", TWO)
        _set_running(row, progress={"done": 500, "total": 2000, "note": "importing"})
        page = client.get(row.get_absolute_url()).content.decode()
        assert '<progress id="bar" data-part max="100" value="25"' in page
        assert "importing: 500 of 2,000" in page
        assert "Cancel the import" in page
        assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in page

    def test_its_cancel_button_stops_a_waiting_import_at_once(self, client: Client) -> None:
        row = request_import("people.csv", TWO)
        page = client.post(f"/imports/{row.pk}/cancel/", follow=True).content.decode()
        assert '<span class="word ">cancelled</span>' in page
        assert "Cancel the import" not in page
        job = Job.objects.get()
        assert (job.state, job.cancel_requested_by) == (Job.State.CANCELLED, "a visitor")

    def test_a_running_import_is_asked_to_stop(self, client: Client) -> None:
        row = request_import("people.csv", TWO)
        _set_running(row)
        page = client.post(f"/imports/{row.pk}/cancel/", follow=True).content.decode()
        assert '<span class="word ">stopping</span>' in page
        assert Job.objects.get().cancel_requested_at is not None

    def test_an_import_that_has_ended_cannot_be_cancelled(self, client: Client) -> None:
        row = request_import("people.csv", TWO)
        operations.cancel(row.job_id or 0)
        page = client.post(f"/imports/{row.pk}/cancel/", follow=True).content.decode()
        assert "Too late to cancel" in page

    def test_the_cancel_button_needs_a_post_with_its_token(self) -> None:
        row = request_import("people.csv", TWO)
        client = Client(enforce_csrf_checks=True)
        assert client.get(f"/imports/{row.pk}/cancel/").status_code == 405
        assert client.post(f"/imports/{row.pk}/cancel/").status_code == 403
        assert Job.objects.get().state == Job.State.READY

    def test_an_import_whose_job_was_pruned_still_has_its_page(self, client: Client) -> None:
        row = request_import("people.csv", TWO)
        Job.objects.all().delete()
        page = client.get(row.get_absolute_url()).content.decode()
        assert "Its job has been cleared away." in page
        assert "data-live" not in page

    def test_a_name_with_markup_is_shown_as_text(self, client: Client) -> None:
        row = request_import("<b>x</b>.csv", TWO)
        assert "<b>x</b>" not in client.get(row.get_absolute_url()).content.decode()

    def test_the_front_page_costs_the_same_queries_for_one_import_as_for_many(
        self, client: Client, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        for number in range(5):
            request_import(f"{number}.csv", TWO)
        with django_assert_num_queries(3):  # imports, jobs, count of contacts
            client.get("/")


def _set_running(row: Import, **fields: object) -> None:
    now = timezone.now()
    token = "01900000-0000-7000-8000-000000000000"
    assert row.job_id
    Job.objects.filter(pk=row.job_id).update(
        state=Job.State.RUNNING,
        worker=token,
        lease_token=token,
        lease_expires_at=now + timedelta(minutes=1),
        claimed_at=now,
        started_at=now,
        **fields,
    )


class TestWebhooks:
    def test_the_page_sends_one_now_or_later(self, client: Client) -> None:
        client.post("/webhooks/", {"plan": "gone", "delay": "0"})
        client.post("/webhooks/", {"plan": "well", "delay": "3600"})
        now, later = Job.objects.order_by("pk")
        assert (now.state, later.state) == (Job.State.READY, Job.State.SCHEDULED)
        assert list(Webhook.objects.values_list("job_id", flat=True)) == [later.pk, now.pk]
        assert "The partner rejects it for good (410)" in client.get("/webhooks/").content.decode()

    def test_a_plan_that_is_none_is_refused(self, client: Client) -> None:
        assert client.post("/webhooks/", {"plan": "x", "delay": "0"}).status_code == 422
        assert not Job.objects.exists()

    @pytest.mark.parametrize(
        ("plan", "endings"),
        [
            ("well", [200, 200]),
            ("flaky", [partner.PartnerError, partner.PartnerError, 200]),
            ("busy", [RetryLater, 200]),
            ("gone", [PermanentError]),
            ("down", [partner.PartnerError] * 4),
        ],
    )
    def test_the_partners_answers_decide_how_each_attempt_ends(
        self, plan: str, endings: list[int | type[Exception]]
    ) -> None:
        row = request_webhook(plan)
        attempt = async_to_sync(tasks.deliver_webhook.func)
        for ending in endings:
            if isinstance(ending, int):
                assert attempt(context_of(row.job_id), row.pk) == ending
            else:
                with pytest.raises(ending):
                    attempt(context_of(row.job_id), row.pk)
        row.refresh_from_db()
        assert (row.delivered_at is not None) == (endings[-1] == 200)
        assert row.calls.filter(status=200).count() == (endings[-1] == 200)


def test_seeding_enqueues_some_work_the_first_time_only() -> None:
    said = StringIO()
    call_command("seed_demo", stdout=said)
    count = Job.objects.count()
    assert count == 2 + len(partner.PLANS) + 3
    assert Job.objects.filter(state=Job.State.SCHEDULED).count() == 3
    call_command("seed_demo", stdout=said)
    assert Job.objects.count() == count
    assert "nothing was enqueued" in said.getvalue()
