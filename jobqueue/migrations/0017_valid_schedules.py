from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations

from jobqueue.migrations._locks import LockTimeout


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0016_schedule_row_rules"),
    ]

    operations = [
        LockTimeout(),
        ValidateConstraint(model_name="schedule", name="jobqueue_schedule_times"),
        ValidateConstraint(model_name="schedule", name="jobqueue_schedule_arguments"),
    ]
