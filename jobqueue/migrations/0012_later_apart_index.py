from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("jobqueue", "0011_timed_index"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["run_at"],
                condition=models.Q(
                    ("state", "SCHEDULED"),
                    models.Q(("parked_at__isnull", False), ("needs__gt", 0), _connector="OR"),
                ),
                name="jobqueue_job_later_apart",
            ),
        ),
    ]
