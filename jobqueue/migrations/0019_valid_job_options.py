from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations

from jobqueue.migrations._locks import LockTimeout


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0018_job_options"),
    ]

    operations = [
        LockTimeout(),
        ValidateConstraint(model_name="job", name="jobqueue_job_options"),
    ]
