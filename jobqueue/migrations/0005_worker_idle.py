from django.db import migrations, models

from jobqueue.migrations._locks import LockTimeout


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0004_bulk_order"),
    ]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="worker",
            name="idle_reason",
            field=models.CharField(
                blank=True, db_default="", default="", max_length=10, verbose_name="takes no jobs"
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="signals_dropped",
            field=models.IntegerField(db_default=0, default=0, verbose_name="signals dropped"),
        ),
    ]
