"""Indexes of the operator's desk, built beside a running queue."""

from typing import ClassVar

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies: ClassVar = [("jobqueue", "0003_desk")]
    operations: ClassVar = [
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("outcome__in", ["FAILED", "LOST", "TIMED_OUT"])),
                fields=["finished_at"],
                name="jobqueue_attempt_failed",
            ),
        ),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state__in", ["CANCELLED", "DEAD", "SUCCEEDED"])),
                fields=["task", "state", "id"],
                name="jobqueue_job_task",
            ),
        ),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state", "BLOCKED")),
                fields=["id"],
                name="jobqueue_job_blocked",
            ),
        ),
    ]
