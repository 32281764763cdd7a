"""How tests run the example site's handlers without a worker."""

from django.db import transaction

from jobqueue import results
from jobqueue.context import Control, JobContext
from project.contacts import tasks
from project.contacts.models import Import

HEADER = b"name,email,company,phone\n"
TWO = HEADER + b"Ada,ada@x.example,Ada Ltd,1\nBo,bo@x.example,,\n"


def context_of(job_id: int | None, control: Control | None = None) -> JobContext:
    result = results.load(str(job_id))
    return JobContext(task_result=result, control=control or Control())


def run_import(row: Import, control: Control | None = None) -> None:
    """Run the job as a worker does: its handler in one transaction."""
    context = context_of(row.job_id, control)
    with transaction.atomic():
        tasks.import_contacts.func(context, row.pk)
    row.refresh_from_db()
