"""The operator's desk: the charts' minutes, and the dashboard's place in the admin."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("jobqueue", "0002_storage")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="Minute",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                (
                    "queue",
                    models.CharField(
                        db_default="", default="", max_length=63, verbose_name="queue"
                    ),
                ),
                ("succeeded", models.IntegerField(db_default=0, default=0)),
                ("dead", models.IntegerField(db_default=0, default=0)),
                ("cancelled", models.IntegerField(db_default=0, default=0)),
                (
                    "failed",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        help_text="Failed attempts, those that are retried included.",
                    ),
                ),
                ("wait_p50", models.FloatField(null=True)),
                ("wait_p95", models.FloatField(null=True)),
            ],
            options={
                "verbose_name": "minute",
                "verbose_name_plural": "minutes",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("at", "queue"), name="jobqueue_minute_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Dashboard",
            fields=[],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("jobqueue.job",),
        ),
    ]
