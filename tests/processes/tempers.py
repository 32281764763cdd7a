"""Handlers of every temper, for workers in processes of their own.

What a handler does is noted in the file that EFFECTS names, a line for each begin and end.
"""

import asyncio
import atexit
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from django.db import connection, transaction
from django.tasks import task


def note(context, word):
    line = f"{context.job_id} {context.attempt} {word} {os.getpid()}\n"
    descriptor = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@task(takes_context=True)
async def nap(context, seconds):
    note(context, "begin")
    await asyncio.sleep(seconds)
    note(context, "end")


@task(takes_context=True)
def doze(context, seconds):
    """As `nap`, in a thread that can be interrupted at any line."""
    note(context, "begin")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)
    note(context, "end")


@task(takes_context=True)
def sleep_deep(context, seconds):
    """In one call, which no interrupt ends."""
    note(context, "begin")
    time.sleep(seconds)
    note(context, "end")


@task(takes_context=True, atomic=True)
def hang_after_commit(context, seconds):
    """Its own hook waits for a mail server, say."""
    transaction.on_commit(lambda: note(context, "hook") or time.sleep(seconds))
    note(context, "begin")


@task(takes_context=True)
async def ignore_everything(context):
    note(context, "begin")
    while True:
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            note(context, "ignored")


@task(takes_context=True)
async def tidy_up(context, seconds):
    note(context, "begin")
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(seconds)
        note(context, "tidied")


@task(takes_context=True)
async def block_loop(context, seconds):
    note(context, "begin")
    time.sleep(seconds)  # noqa: ASYNC251
    await asyncio.sleep(0)
    note(context, "end")


@task(takes_context=True)
async def hold_interpreter(context, *, when_stopping):
    """A regular expression that backtracks for hours, in C."""
    note(context, "begin")
    while when_stopping and not context.is_stopping:
        await asyncio.sleep(0.01)
    re.match(r"(a+)+$", "a" * 40 + "b")


@task(takes_context=True)
def hold_then_clean_up(context, seconds, cleaning):
    """In a C call that keeps the interpreter to itself; asked to stop, it cleans up."""
    note(context, "begin")
    try:
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
        while True:
            time.sleep(0.005)
    except BaseException:
        time.sleep(cleaning)
        note(context, "cleaned")
        raise


@task(takes_context=True)
def leave_thread(context, seconds):
    threading.Thread(target=time.sleep, args=[seconds]).start()
    note(context, "end")


@task(takes_context=True)
async def leave_pool(context, seconds):
    """A call in a pool of threads of the project's own, which nobody awaits."""
    ThreadPoolExecutor(1).submit(time.sleep, seconds)
    note(context, "end")


@task(takes_context=True)
async def leave_call(context, seconds):
    """A call in the loop's default executor, which nobody awaits: a part of the handler."""
    asyncio.get_running_loop().run_in_executor(None, time.sleep, seconds)
    note(context, "end")


@task(takes_context=True)
def poison(context, seconds):
    """As a bug in a library written in C, or the kernel's memory killer."""
    note(context, "begin")
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def fork(context):
    """A child that sleeps, as a pool of processes has them, and is ended by a signal."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(child, 15)
    _, status = os.waitpid(child, 0)
    note(context, f"child-{os.WTERMSIG(status)}")


@task(takes_context=True)
def child_program(context):
    note(context, "begin")
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)


@task(takes_context=True)
def write_row(context, seconds):
    """An effect in the database, in the transaction of whoever runs this."""
    note(context, "begin")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO test_effect VALUES (%s, %s)", [context.job_id, os.getpid()])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
    note(context, "end")


write_row_once = task(takes_context=True, atomic=True)(write_row.func)


@task(takes_context=True)
async def wait_for_file(context, path):
    note(context, "begin")
    while not Path(path).exists():  # noqa: ASYNC240
        await asyncio.sleep(0.01)
    note(context, "end")


@task(takes_context=True)
def sleep_in_database(context, seconds):
    note(context, "begin")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])
    note(context, "end")


@task(takes_context=True)
def finish_when_stopping(context):
    note(context, "begin")
    while not context.is_stopping:
        time.sleep(0.01)
    note(context, "end")


@task(takes_context=True)
async def keep_secret(context, password):
    progress = f"{password} half-way"
    note(context, "begin")
    await asyncio.sleep(600)
    note(context, progress)


@task(takes_context=True)
def hang_at_exit(context):
    """As a library that sends its last figures to a host that does not answer."""
    atexit.register(time.sleep, 600)
    note(context, "end")
