"""Handlers that fork, for a worker in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

from django.db import connection, transaction
from django.tasks import task


def _end(way: str) -> None:
    """What the child does; it comes back only where it returns."""
    if way == "raises":
        raise ValueError("the child")
    if way == "exits":
        sys.exit(7)
    if way == "leaves":
        os._exit(9)


def _code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@task
def forks(way: str) -> int:
    child = os.fork()
    if child == 0:
        _end(way)
        return -1
    return _code(child)


@task
async def aforks(way: str) -> int:
    child = os.fork()
    if child == 0:
        if way == "awaits":
            await asyncio.sleep(0.01)
        _end(way)
        return -1
    return await asyncio.to_thread(_code, child)


@task
def steady() -> None:
    time.sleep(0.5)


def _backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task
def forks_and_queries() -> list[int]:
    with transaction.atomic():
        mine = _backend()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, str(_backend()).encode())
            sys.exit(0)
        assert _code(child) == 0
        return [mine, int(os.read(read, 100)), _backend()]


@task
def forks_and_terminates() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        sys.exit(0)
    time.sleep(0.2)
    os.kill(child, signal.SIGTERM)
    return _code(child)


def _square(number: int) -> int:
    return number * number


@task
def pools() -> Any:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(_square, range(4))
