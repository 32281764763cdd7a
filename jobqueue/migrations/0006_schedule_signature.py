from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0005_worker_idle"),
    ]

    operations = [
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
