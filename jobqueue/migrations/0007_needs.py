from django.db import migrations, models

from jobqueue.migrations._locks import LockTimeout


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0006_schedule_signature"),
    ]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="job",
            name="needs",
            field=models.SmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="job",
            name="suspect",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="worker",
            name="may_lead",
            field=models.BooleanField(db_default=True, default=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="understands",
            field=models.SmallIntegerField(db_default=0, default=0),
        ),
    ]
