"""The jobs that are measured: they do nothing but say that they ran."""

import asyncio

from django.tasks import task

from benchmarks.marks import mark


@task()
async def note(number: int) -> None:
    mark(number)


@task()
def note_sync(number: int) -> None:
    mark(number)


@task()
async def nap(number: int, seconds: float) -> None:
    mark(number)
    await asyncio.sleep(seconds)
