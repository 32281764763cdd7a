"""The W3C trace context of a job: stored at the enqueue, linked to when it runs."""

import re

from structlog.contextvars import get_contextvars

TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


def current() -> str:
    """Return the trace context of this moment, or nothing; a malformed one is ignored.

    OpenTelemetry's, if it is installed and a span is active; else the `traceparent` in structlog's
    context, where a middleware may have put the request's header.
    """
    found = _from_opentelemetry() or get_contextvars().get("traceparent", "")
    return found if isinstance(found, str) and TRACEPARENT.match(found) else ""


def _from_opentelemetry() -> str:
    if _inject is None:
        return ""
    carrier: dict[str, str] = {}
    _inject(carrier)
    return carrier.get("traceparent", "")


try:
    from opentelemetry.propagate import inject as _inject
except ImportError:
    _inject = None
