from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("jobqueue", "0009_ready_apart_index"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["parked_at"],
                condition=models.Q(
                    ("state", "SCHEDULED"),
                    models.Q(("parked_at__isnull", False), ("needs__gt", 0), _connector="OR"),
                ),
                name="jobqueue_job_later_apart",
            ),
        ),
    ]
