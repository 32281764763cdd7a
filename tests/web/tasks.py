"""Tasks that the rows of these tests name."""

from django.tasks import task

from tests.sample_tasks import post  # noqa: F401  (a task of another module, to be chosen here)


@task
def send_receipt(order: int, **options: object) -> str:
    return f"sent {order}"


@task
def log_in(user: str, password: str, **options: object) -> None:
    """Has a secret among its positional arguments."""


@task
def note(subject: str, text: str) -> None:
    """Has none."""
