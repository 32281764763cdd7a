"""Users of every kind, and a browser without JavaScript."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

VIEW = ("view_job", "view_worker", "view_leaderlease", "view_queue", "view_schedule")
OPERATE = ("cancel_job", "retry_job", "run_job", "change_job", "delete_job", "pause_queue")
SCHEDULES = ("run_schedule", "add_schedule", "change_schedule", "delete_schedule")


@pytest.fixture
def staff(db: None) -> Callable[..., User]:
    """Makes a member of the staff with these permissions of the app."""

    def make(*codenames: str, username: str = "ann") -> User:
        user = User.objects.create_user(username, password="secret", is_staff=True)
        chosen = Permission.objects.filter(
            content_type__app_label="jobqueue", codename__in=codenames
        )
        assert chosen.count() == len(set(codenames))
        user.user_permissions.set(chosen)
        return user

    return make


@pytest.fixture
def operator(staff: Callable[..., User]) -> Client:
    """Logged in with every permission of the admin pages."""
    client = Client()
    client.force_login(staff(*VIEW, *OPERATE, *SCHEDULES))
    return client


@pytest.fixture
def viewer(staff: Callable[..., User]) -> Client:
    """Logged in, allowed to look at everything and to do nothing."""
    client = Client()
    client.force_login(staff(*VIEW, username="vera"))
    return client
