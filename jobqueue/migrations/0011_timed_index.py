from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("jobqueue", "0010_later_apart_index"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["run_at"],
                condition=models.Q(
                    ("needs__lte", 0), ("parked_at__isnull", True), ("state", "SCHEDULED")
                ),
                name="jobqueue_job_timed",
            ),
        ),
    ]
