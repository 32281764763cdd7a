from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("jobqueue", "0012_remove_parked_index"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                models.F("queue"),
                models.F("task"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("run_at"),
                models.F("id"),
                condition=models.Q(
                    ("needs__lte", 0), ("parked_at__isnull", False), ("state", "SCHEDULED")
                ),
                name="jobqueue_job_parked_tasks",
            ),
        ),
    ]
