from django.db import migrations, models

from jobqueue.migrations._locks import LockTimeout


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0019_valid_job_options"),
    ]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="job",
            name="args_bytes",
            field=models.IntegerField(
                blank=True,
                help_text="The size of the arguments as JSON. Unknown for older jobs.",
                null=True,
            ),
        ),
    ]
