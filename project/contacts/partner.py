"""A partner's server, simulated in this process: each webhook holds the plan of its answers."""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from project.contacts.models import Call, Webhook

LATENCY_SECONDS = 0.05
BUSY_SECONDS = 3

PLANS: dict[str, tuple[str, list[int]]] = {
    "well": ("accepts it", [200]),
    "flaky": ("fails twice, then accepts", [500, 502, 200]),
    "busy": ("is busy once (Retry-After), then accepts", [503, 200]),
    "gone": ("rejects it for good (410)", [410]),
    "down": ("fails every time", [500]),
}


class PartnerError(Exception):
    """The partner's server failed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The partner's answer."""

    status: int
    retry_after: int | None = None

    def __str__(self) -> str:
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    @property
    def is_client_error(self) -> bool:
        return 400 <= self.status < 500

    @property
    def is_server_error(self) -> bool:
        return self.status >= 500


async def post(webhook: Webhook, *, key: str) -> Answer:
    """Send the webhook and return the answer of the plan."""
    await asyncio.sleep(LATENCY_SECONDS)
    calls = webhook.calls.filter(key=key)
    if await calls.filter(status=HTTPStatus.OK).aexists():
        return Answer(HTTPStatus.OK)  # this key was accepted before: nothing is done twice
    plan = [int(status) for status in webhook.plan]
    status = plan[min(await calls.acount(), len(plan) - 1)]
    await Call.objects.acreate(webhook=webhook, key=key, status=status)
    is_busy = status == HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, retry_after=BUSY_SECONDS if is_busy else None)
