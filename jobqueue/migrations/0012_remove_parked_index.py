from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("jobqueue", "0011_timed_index"),
    ]

    operations = [
        RemoveIndexConcurrently(model_name="job", name="jobqueue_job_parked"),
    ]
