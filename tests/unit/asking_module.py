"""Asks the database while it is imported, as modules of projects do."""

import threading

from django.contrib.auth.models import Group
from django.tasks import task

IMPORTED_IN = threading.current_thread().name
FOUND = Group.objects.count()


@task
def found() -> int:
    return FOUND
