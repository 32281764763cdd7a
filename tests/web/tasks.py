"""Tasks that the rows of these tests name."""

import time

from django.tasks import task

from jobqueue.context import JobContext


@task
def send_receipt(order: int, **options: object) -> str:
    return f"sent {order}"


@task(takes_context=True)  # type: ignore[arg-type]
def import_slowly(context: JobContext, rows: int) -> int:
    """A hundred rows a second, until somebody cancels it."""
    for row in range(rows):
        context.raise_if_cancelled()
        context.progress(row + 1, rows, "importing")
        time.sleep(0.01)
    return rows
