"""Jobs that leave a trace: one row for each (job, attempt), a second one is an error."""

import asyncio
import time

from asgiref.sync import sync_to_async
from django.db import connection
from django.tasks import task

from jobqueue.logs import get_logger

log = get_logger()
TABLE = "CREATE TABLE effect (job bigint, attempt int, PRIMARY KEY (job, attempt))"


def leave(context):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s, %s)", [context.job_id, context.attempt])


@task(takes_context=True)
def plain(context, seconds=0.0):
    time.sleep(seconds)
    leave(context)


@task(takes_context=True, atomic=True)
def atomic(context, seconds=0.0):
    time.sleep(seconds)
    leave(context)


@task(takes_context=True)
async def coroutine(context, seconds=0.0):
    await asyncio.sleep(seconds)
    await sync_to_async(leave)(context)


@task(takes_context=True)
async def idle(context, seconds=0.0):
    """Touches no database: what remains of it is the history alone."""
    if seconds >= 1:
        log.info("idle_begun")  # the row says RUNNING before the worker has heard of it
    await asyncio.sleep(seconds)


@task(takes_context=True)
async def brief(context, seconds=0.0, fails=False):
    await asyncio.sleep(seconds)
    if fails:
        raise ValueError("as asked")
    await sync_to_async(leave)(context)


@task(takes_context=True)
def brief_plain(context, seconds=0.0, fails=False):
    time.sleep(seconds)
    if fails:
        raise ValueError("as asked")
    leave(context)
