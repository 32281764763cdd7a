from django.db import migrations, models

from jobqueue.migrations._locks import LockTimeout


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0005_worker_idle"),
    ]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="schedule",
            name="signature",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="The parameters of the task when the arguments were stored.",
            ),
        ),
    ]
