"""Cron expressions: when they tick, in which time zone. Pure.

cronsim parses the expression; how it behaves when the clocks change is decided here. If its minute
and hour fields both name times (neither starts with "*"), it ticks once at each of those times of
the day: in the spring gap at the first moment after it, in the repeated autumn hour only the first
time. Any other expression is an interval: it ticks whenever the wall clock shows a matching minute,
so its ticks stay evenly spaced in real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
# A change of offset is found by stepping; no zone changes twice within half a day.
_STEP = timedelta(hours=12)
_SECOND = timedelta(seconds=1)
# cronsim gives up after fifty years without a match; searching further is pointless.
_LAST_YEAR = 9900


class CronError(ValueError):
    """An unusable expression or time zone; the message says why."""


def check(expression: str, timezone: str = "UTC") -> None:
    """Raise CronError for an expression that is malformed or can never tick."""
    zone(timezone)
    _parse(expression)


def zone(name: str) -> ZoneInfo:
    """Return the time zone. Raises CronError."""
    if not isinstance(name, str) or not name:
        raise CronError(f"{name!r} is not a time zone: write a name such as 'Europe/Berlin'.")
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise CronError(
            f"{name!r} is not a time zone that this system knows: write a name such as "
            "'Europe/Berlin'."
        ) from None


def ticks(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield the ticks after this moment (aware), in UTC, each later than the one before."""
    _parse(expression)
    found = _times if _names_times(expression) else _intervals
    last = after.astimezone(UTC)
    for tick in found(expression, zone(timezone), last):
        if tick > last:  # in a gap, several times of day fall on the same moment
            last = tick
            yield tick


def next_tick(expression: str, timezone: str, after: datetime) -> datetime:
    """Return the first tick after this moment, in UTC."""
    tick = next(ticks(expression, timezone, after), None)
    if tick is None:
        raise CronError(f"{expression!r} has no tick after {after}.")
    return tick


@lru_cache(maxsize=1024)
def _parse(expression: str) -> None:
    """Raise CronError unless the expression is one of five fields that ticks some day."""
    if not isinstance(expression, str) or not expression.strip():
        raise CronError("A cron expression has five fields, such as '30 2 * * *'; this is empty.")
    if expression.strip().startswith("@"):
        raise CronError(f"{expression!r}: write the five fields instead, such as '0 0 * * *'.")
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(
            f"{expression!r} has {len(fields)} fields; a cron expression has five: "
            f"{', '.join(FIELDS)}."
        )
    try:
        next(CronSim(expression, datetime(2000, 1, 1)))
    except CronSimError as error:
        raise CronError(f"{expression!r}: {_explain(fields, str(error))}") from None
    except ValueError:  # a number with thousands of digits
        raise CronError("A field of this cron expression is far too long.") from None
    except StopIteration:
        raise CronError(f"{expression!r} names a date that does not occur.") from None


def _explain(fields: list[str], message: str) -> str:
    names = {"minute": 0, "hour": 1, "day-of-month": 2, "month": 3, "day-of-week": 4}
    place = names.get(message.removeprefix("Bad "))
    if place is None:
        return f"{message}."
    ranges = ("0-59", "0-23", "1-31", "1-12 or JAN-DEC", "0-7 or SUN-SAT")[place]
    value = fields[place]
    if place == 2 and value.replace(",", "").isdecimal():
        return f"no month named here has a day {value}, or it is not within {ranges}."
    return (
        f"the {FIELDS[place]} field {value!r} is not valid: write values from {ranges}, lists, "
        "ranges that rise, and steps from 1."
    )


def _names_times(expression: str) -> bool:
    minute, hour, *_ = expression.split()
    return not minute.startswith("*") and not hour.startswith("*")


def _naive(expression: str, after: datetime) -> Iterator[datetime]:
    for tick in CronSim(expression, after):
        if tick.year > _LAST_YEAR:
            return
        yield tick


def _times(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield each time of the day once. May repeat a moment, or begin before `after`."""
    # From a day before: a time in a gap moves forward, one in a repeated hour comes early.
    start = after.astimezone(zone).replace(tzinfo=None) - timedelta(days=1)
    for local in _naive(expression, start):
        moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == local:
            yield moment
        else:
            yield _transition(zone, moment - timedelta(days=1), moment + timedelta(days=1))


def _intervals(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield every moment at which the wall clock matches, from one clock change to the next."""
    start: datetime | None = after
    while start is not None:
        offset = _offset(zone, start)
        begin, start = start, None
        for local in _naive(expression, (begin + offset).replace(tzinfo=None)):
            moment = (local - offset).replace(tzinfo=UTC)
            start = _first_change(zone, begin, moment)
            if start is not None:
                break
            begin = moment
            yield moment
        if start is not None and _shows(expression, start + _offset(zone, start)):
            yield start


def _shows(expression: str, wall: datetime) -> bool:
    local = wall.replace(tzinfo=None)
    return next(_naive(expression, local - _SECOND), None) == local


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _first_change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """Return the first change of offset after `start` and not after `end`, or None."""
    offset, at = _offset(zone, start), start
    while at < end:
        at = min(at + _STEP, end)
        if _offset(zone, at) != offset:
            return _transition(zone, max(start, at - _STEP), at)
    return None


def _transition(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the moment of the change of offset that lies between these two."""
    offset = _offset(zone, before)
    before, after = before.replace(microsecond=0), after.replace(microsecond=0)
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        if _offset(zone, middle) == offset:
            before = middle
        else:
            after = middle
    return after


# The most that is caught up after downtime, and what still counts as on time.
CATCH_UP_WINDOW = timedelta(days=1)
CATCH_UP_AT_ONCE = 100
IN_TIME = timedelta(seconds=60)


def due_ticks(
    expression: str, timezone: str, planned: datetime, now: datetime, catch_up: str
) -> list[datetime]:
    """Return the ticks to fire now that `planned` has come, in order.

    skip: the latest, if it is at most a minute old. once: the latest. all: those of the last day,
    at most a hundred at a time; ask again with a later `planned` for the rest.
    """
    if catch_up == "all":
        first = [planned] if planned >= now - CATCH_UP_WINDOW else []
        later = ticks(expression, timezone, max(planned, now - CATCH_UP_WINDOW))
        return [*first, *takewhile(lambda tick: tick <= now, later)][:CATCH_UP_AT_ONCE]
    latest = _latest(expression, timezone, planned, now)
    return [] if catch_up == "skip" and now - latest > IN_TIME else [latest]


def _latest(expression: str, timezone: str, planned: datetime, now: datetime) -> datetime:
    """Return the last tick up to now; `planned` if there is none after it. Searches further and
    further back, because there may be a great many."""
    for days in (1 / 24, 1, 40, 400, 4000, 400_000):
        start = max(planned, now - timedelta(days=days))
        found = list(takewhile(lambda tick: tick <= now, ticks(expression, timezone, start)))
        if found:
            return found[-1]
        if start == planned:
            break
    return planned
