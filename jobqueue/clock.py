"""The database's clock, which alone decides about jobs, and the event loop's, for waits."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import cast

from django.db import connections

from jobqueue.conf import settings


def database_time(alias: str | None = None) -> datetime:
    """Return the moment by the clock of the queue's database (or of this one)."""
    with connections[alias or settings().database].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cast(datetime, cursor.fetchone()[0])


def loop_time() -> float:
    """Return the running loop's monotonic seconds."""
    return asyncio.get_running_loop().time()
