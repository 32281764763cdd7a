"""The site's own version of one of the app's admin pages."""

import pytest
from django.test import Client

from project.contacts.requests import request_import, request_webhook


@pytest.mark.django_db
def test_an_imports_job_links_to_what_its_user_sees(admin_client: Client) -> None:
    row = request_import("people.csv", b"")
    page = admin_client.get(f"/admin/jobqueue/job/{row.job_id}/", follow=True).content.decode()
    assert f'<a href="/imports/{row.pk}/">The page of this import</a>' in page


@pytest.mark.django_db
def test_another_job_has_the_apps_own_page(admin_client: Client) -> None:
    webhook = request_webhook("well")
    response = admin_client.get(f"/admin/jobqueue/job/{webhook.job_id}/", follow=True)
    assert response.status_code == 200
    assert "The page of this import" not in response.content.decode()
