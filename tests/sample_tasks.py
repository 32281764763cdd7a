"""Tasks that tests enqueue by their path."""

from django.tasks import task


@task
def send(number: int = 0, *, text: str = "") -> int:
    return number


@task(queue_name="mail", priority=5)
async def post(address: str) -> str:
    return address


@task
def fail() -> None:
    raise RuntimeError("as it should")
