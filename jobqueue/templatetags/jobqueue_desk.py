"""How the pages write times, durations and counts."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import template
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from jobqueue import redact
from jobqueue.admin import labels
from jobqueue.admin.job_detail import percent
from jobqueue.insight.stats import Count
from jobqueue.insight.why import IDLE
from jobqueue.models.attempt import OUTCOME_LABELS
from jobqueue.models.job import STATE_LABELS

register = template.Library()
register.filter("percent", percent)
register.filter("covered", redact.cover_text)

NOTHING = "\N{EN DASH}"
MINUTE, HOUR, DAY = 60, 3600, 86400


@register.filter
def duration(value: timedelta | float | None) -> str:
    """Two units at most: "0.2 s", "3 min 4 s", "2 d 5 h"."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return _("%(n)s ms") % {"n": number_format(round(seconds * 1000))}
    if seconds < 10:
        return _("%(n)s s") % {"n": number_format(round(seconds, 1), decimal_pos=1)}
    whole = round(seconds)
    if whole < MINUTE:
        return _("%(n)s s") % {"n": whole}
    if whole < HOUR:
        return _pair(_("%(n)s min"), whole // MINUTE, _("%(n)s s"), whole % MINUTE)
    if whole < DAY:
        return _pair(_("%(n)s h"), whole // HOUR, _("%(n)s min"), whole % HOUR // MINUTE)
    return _pair(_("%(n)s d"), whole // DAY, _("%(n)s h"), whole % DAY // HOUR)


def _pair(first: str, many: int, second: str, few: int) -> str:
    text = first % {"n": number_format(many, force_grouping=True)}
    return f"{text} {second % {'n': few}}" if few else text


@register.filter
def moment(value: datetime | None) -> SafeString | str:
    """A time in the viewer's zone, with the zone."""
    if value is None:
        return NOTHING
    local = timezone.localtime(value)
    text = f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}"
    return format_html('<time datetime="{}">{}</time>', value.isoformat(), text)


@register.simple_tag
def since(value: datetime | None, now: datetime) -> SafeString | str:
    """How long ago, or in how long; the moment itself as a tooltip."""
    if value is None:
        return NOTHING
    seconds = (now - value).total_seconds()
    form = _("%(span)s ago") if seconds >= 0 else _("in %(span)s")
    local = timezone.localtime(value)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        value.isoformat(),
        f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}",
        form % {"span": duration(abs(seconds))},
    )


@register.simple_tag
def span(start: datetime | None, end: datetime | None) -> str:
    """How long from one moment to the other; never negative."""
    return NOTHING if start is None or end is None else duration(end - start)


@register.filter
def count(value: Count | int) -> str:
    """A number with separated thousands, marked where it is an estimate."""
    if isinstance(value, int):
        return number_format(value, force_grouping=True)
    text = number_format(value.value, force_grouping=True)
    return text if value.exact else f"≈ {text}"


@register.filter
def state_label(value: str) -> str:
    return str(STATE_LABELS.get(value, value))  # type: ignore[call-overload]


@register.filter
def outcome_label(value: str) -> str:
    return str(OUTCOME_LABELS.get(value, value))  # type: ignore[call-overload]


@register.filter
def reason_label(value: str) -> str:
    return redact.cover_text(labels.reason_label(value))


@register.filter
def phase_label(value: str) -> str:
    return str(labels.PHASES.get(value, value))


@register.filter
def idle_label(value: str) -> str:
    return str(IDLE.get(value, value))


@register.filter
def act_label(value: str) -> str:
    return str(labels.ACTS.get(value, value))


@register.filter
def report_label(value: str) -> str:
    return str(labels.REPORT.get(value, value))


@register.filter
def short_task(value: str) -> str:
    """The function's name with the last part of its module, enough to recognise it."""
    return ".".join(value.rsplit(".", 2)[-2:])


@register.filter
def short_id(value: object) -> str:
    """The last part of a UUID, enough to distinguish processes."""
    return "" if value is None else str(value)[-8:]
