"""Tasks that real workers run in these tests."""

import asyncio
import os
import signal

from django.tasks import task

from jobqueue.exceptions import PermanentError


@task
def add(one: int, two: int) -> int:
    return one + two


@task(takes_context=True, backoff=0.2)
def fail_once(context) -> str:
    if context.attempt == 1:
        raise ValueError("the first time")
    return "the second time"


@task
def die() -> None:
    raise PermanentError("no use")


@task
async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task(max_attempts=3, backoff=0.1)
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
