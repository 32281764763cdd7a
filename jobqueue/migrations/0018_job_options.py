from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models.lookups import Exact

from jobqueue.migrations._locks import LockTimeout

KIND = models.Func("options", function="jsonb_typeof", output_field=models.TextField())


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0017_valid_schedules"),
    ]

    operations = [
        LockTimeout(),
        AddConstraintNotValid(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(Exact(KIND, models.Value("object"))),
                name="jobqueue_job_options",
            ),
        ),
    ]
