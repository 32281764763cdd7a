from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("jobqueue", "0008_claimable_index"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                models.F("suspect"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("run_at"),
                models.F("id"),
                condition=models.Q(
                    ("state", "READY"),
                    models.Q(("suspect", True), ("needs__gt", 0), _connector="OR"),
                ),
                name="jobqueue_job_ready_apart",
            ),
        ),
    ]
