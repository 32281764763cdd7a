"""NOTIFY is only a hint: one that fails is logged, and nothing else fails."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.logs import get_logger
from jobqueue.notifications import Message
from jobqueue.store.connections import Session
from jobqueue.store.notify import notify

log = get_logger()


async def send_hint(session: Session, seconds: float, messages: Sequence[Message]) -> None:
    """Notify the other workers, within `seconds`. If that fails, their polls find the work."""
    try:
        await session.call(notify, seconds, messages)
    except Exception as error:
        kinds = sorted({type(message).__name__ for message in messages})
        log.warning("notification_failed", kinds=kinds, error=repr(error))
