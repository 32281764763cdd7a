"""Tasks that the rows of these tests name."""

from django.tasks import task


@task
def send_receipt(order: int, **options: object) -> str:
    return f"sent {order}"
