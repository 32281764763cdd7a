"""NOTIFY from a worker or a supervisor; the web side sends through Django (jobqueue/notify.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psycopg import AsyncConnection

from jobqueue.notifications import CHANNEL, Message, encode

NOTIFY = f"""
SELECT pg_notify('{CHANNEL}', payload) FROM unnest(%(payloads)s::text[]) AS payload
"""


PROVE = "SELECT pg_notify(%(channel)s, %(proof)s)"


async def prove(connection: AsyncConnection[Any], channel: str, proof: str) -> None:
    """Send a listener's proof to itself. Never along with the renewals: a full notification queue
    would roll them back."""
    await connection.execute(PROVE, {"channel": channel, "proof": proof})


async def notify(connection: AsyncConnection[Any], messages: Iterable[Message]) -> None:
    """Send hints to the workers."""
    await connection.execute(NOTIFY, {"payloads": [encode(message) for message in messages]})
