import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0002_storage"),
    ]

    operations = [
        migrations.CreateModel(
            name="BulkOrder",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("verb", models.CharField(max_length=32, verbose_name="verb")),
                ("filter", models.JSONField(verbose_name="filter")),
                ("moment", models.DateTimeField(verbose_name="asked for as of")),
                ("parameters", models.JSONField(db_default={}, default=dict)),
                ("nonce", models.CharField(max_length=64, unique=True)),
                ("asker_id", models.TextField()),
                ("asker", models.TextField(verbose_name="asked by")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("RUNNING", "running"),
                            ("DONE", "done"),
                            ("CANCELLED", "cancelled"),
                            ("REFUSED", "refused"),
                        ],
                        db_default="RUNNING",
                        default="RUNNING",
                        max_length=9,
                        verbose_name="state",
                    ),
                ),
                (
                    "reason",
                    models.TextField(blank=True, db_default="", default="", verbose_name="reason"),
                ),
                ("last_key", models.BigIntegerField(db_default=0, default=0)),
                ("expected", models.BigIntegerField(db_default=0, default=0)),
                (
                    "changed",
                    models.BigIntegerField(db_default=0, default=0, verbose_name="changed"),
                ),
                ("asked", models.BigIntegerField(db_default=0, default=0)),
                ("left", models.JSONField(db_default={}, default=dict)),
                ("trail", models.JSONField(db_default=[], default=list)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="requested at",
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="last slice",
                    ),
                ),
                (
                    "finished_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="ended at"),
                ),
            ],
            options={
                "verbose_name": "bulk order",
                "verbose_name_plural": "bulk orders",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "RUNNING")),
                        fields=["id"],
                        name="jobqueue_bulkorder_open",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["RUNNING", "DONE", "CANCELLED", "REFUSED"])
                        ),
                        name="jobqueue_bulkorder_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("state", "RUNNING")),
                            models.Q(
                                models.Q(("state", "RUNNING"), _negated=True),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="jobqueue_bulkorder_end",
                    ),
                ],
            },
        ),
    ]
