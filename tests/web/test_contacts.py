"""The example site's pages: what they store, enqueue and show."""

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from jobqueue import operations
from jobqueue.models import Job
from project.contacts import forms, partner, sample_data
from project.contacts.models import Import, Webhook
from project.contacts.requests import request_import
from tests.web.contacts_jobs import TWO

pytestmark = pytest.mark.django_db


def upload(client: Client, content: bytes, **more: str) -> Any:
    file = SimpleUploadedFile("people.csv", content, content_type="text/csv")
    return client.post("/", {"file": file, "receipt_to": "me@x.example"} | more)


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
    def test_a_file_that_it_will_not_take_gets_a_reason_and_enqueues_nothing(
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


def test_seeding_enqueues_some_work_the_first_time_only() -> None:
    said = StringIO()
    call_command("seed_demo", stdout=said)
    count = Job.objects.count()
    assert count == 2 + len(partner.PLANS) + 3
    assert Job.objects.filter(state=Job.State.SCHEDULED).count() == 3
    call_command("seed_demo", stdout=said)
    assert Job.objects.count() == count
    assert "nothing was enqueued" in said.getvalue()
