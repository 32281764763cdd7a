"""Django's admin log: one entry for each job that an act changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.db import router, transaction

from jobqueue.conf import settings
from jobqueue.logs import get_logger
from jobqueue.models import Job
from jobqueue.redact import cover_text

log = get_logger()


def log_jobs(user_id: Any, ids: Iterable[int], verb: str, reason: str) -> None:
    """Written in the open transaction, or after its commit if the log is in another database."""
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, DELETION, LogEntry
    from django.contrib.admin.options import get_content_type_for_model

    chosen, message = list(ids), cover_text(f"{verb}: {reason}" if reason else verb)
    alias = settings().database

    def write() -> None:
        content_type = get_content_type_for_model(Job)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=user_id,
                content_type_id=content_type.pk,
                object_id=str(id),
                object_repr=f"#{id}",
                action_flag=DELETION if verb == "delete" else CHANGE,
                change_message=message,
            )
            for id in chosen
        )

    if router.db_for_write(LogEntry) == alias:
        write()
    else:
        transaction.on_commit(write, using=alias, robust=True)
