from datetime import UTC, datetime

from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models.lookups import Exact

from jobqueue.migrations._locks import LockTimeout

FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def between(column: str) -> models.Q:
    is_null = models.Q(**{f"{column}__isnull": True})
    return is_null | models.Q(**{f"{column}__gt": FIRST, f"{column}__lt": LAST})


def of_kind(column: str, kind: str) -> models.Q:
    found = models.Func(column, function="jsonb_typeof", output_field=models.TextField())
    return models.Q(Exact(found, models.Value(kind)))


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0015_remove_scheduled_index"),
    ]

    operations = [
        LockTimeout(),
        AddConstraintNotValid(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=between("next_run_at") & between("last_run_at"),
                name="jobqueue_schedule_times",
            ),
        ),
        AddConstraintNotValid(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=of_kind("args", "array") & of_kind("kwargs", "object"),
                name="jobqueue_schedule_arguments",
            ),
        ),
    ]
