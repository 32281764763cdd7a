"""The example site's jobs: what they do to the contacts, the mail and the partner."""

import json

import pytest
from asgiref.sync import async_to_sync
from django.core import mail
from django.test import Client

from jobqueue.context import Control
from jobqueue.exceptions import JobCancelled, PermanentError, RetryLater
from jobqueue.models import Job
from project.contacts import partner, sample_data, tasks
from project.contacts.models import Contact, Import, Outcome
from project.contacts.requests import request_import, request_webhook
from tests.web.contacts_jobs import HEADER, TWO, context_of, run_import

pytestmark = pytest.mark.django_db


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

    def test_it_reports_progress_until_the_end(self) -> None:
        row = request_import("people.csv", (sample_data.FOLDER / sample_data.GOOD).read_bytes())
        control, seen = Control(), []

        def look() -> None:
            control.noted = False  # as the worker does once it has looked
            seen.append(json.loads(control.progress or "{}"))

        control.on_progress = look
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
            control.noted = False
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


class TestDeliverWebhook:
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
