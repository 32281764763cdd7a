"""Charts as numbers: a template makes SVG of them, without JavaScript and without a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, log10

from django.utils import timezone

from jobqueue.models import Minute

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 600, 150, 52, 18, 8
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - 4, HEIGHT - BOTTOM - TOP
MINUTE, QUARTER = timedelta(minutes=1), timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Bar:
    """One period; lengths are strings, because a decimal comma would break the SVG."""

    x: str
    width: str
    good_y: str
    good_height: str
    bad_y: str
    bad_height: str
    time: str
    succeeded: int
    failed: int


@dataclass(frozen=True, slots=True)
class Label:
    place: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What the template draws. `empty`: nothing happened, or no leader recorded it."""

    bars: list[Bar]
    p50: str = ""
    p95: str = ""
    rows: list[Label]  # along the left
    columns: list[Label]  # along the bottom
    empty: bool
    total: int = 0
    failed: int = 0


def hour(minutes: Sequence[Minute], now: datetime) -> tuple[Chart, Chart]:
    """Throughput and waits of the last hour."""
    last = now.replace(second=0, microsecond=0) - MINUTE
    return _both(minutes, last - 59 * MINUTE, MINUTE, 60, every=15)


def day(quarters: Sequence[Minute], now: datetime) -> tuple[Chart, Chart]:
    """Throughput and waits of the last day, by quarters of an hour."""
    last = now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0)
    return _both(quarters, last - 95 * QUARTER, QUARTER, 96, every=24)


def _both(
    found: Sequence[Minute], start: datetime, step: timedelta, count: int, every: int
) -> tuple[Chart, Chart]:
    by_time = {minute.at: minute for minute in found}
    spans = [(at := start + step * n, by_time.get(at)) for n in range(count)]
    columns = [
        Label(f"{LEFT + PLOT_WIDTH * n / count:.1f}", f"{timezone.localtime(at):%H:%M}")
        for n, (at, _) in enumerate(spans)
        if n % every == 0
    ]
    return _throughput(spans, columns), _waits(spans, columns)


Spans = list[tuple[datetime, Minute | None]]


def _throughput(spans: Spans, columns: list[Label]) -> Chart:
    numbers = [(m.succeeded, m.failed) if m else (0, 0) for _, m in spans]
    top = _nice(max(good + bad for good, bad in numbers))
    width = PLOT_WIDTH / len(spans)
    bars = []
    for position, ((at, _), (good, bad)) in enumerate(zip(spans, numbers, strict=True)):
        if not good and not bad:
            continue
        good_height, bad_height = PLOT_HEIGHT * good / top, PLOT_HEIGHT * bad / top
        base = TOP + PLOT_HEIGHT
        bars.append(
            Bar(
                x=f"{LEFT + position * width:.1f}",
                width=f"{max(width - 1, 1):.1f}",
                good_y=f"{base - good_height:.1f}",
                good_height=f"{good_height:.1f}",
                bad_y=f"{base - good_height - bad_height:.1f}",
                bad_height=f"{bad_height:.1f}",
                time=f"{timezone.localtime(at):%H:%M}",
                succeeded=good,
                failed=bad,
            )
        )
    return Chart(
        bars=bars,
        rows=_rows(top, _short),
        columns=columns,
        empty=not bars,
        total=sum(good for good, _ in numbers),
        failed=sum(bad for _, bad in numbers),
    )


def _waits(spans: Spans, columns: list[Label]) -> Chart:
    p50 = [m.wait_p50 if m else None for _, m in spans]
    p95 = [m.wait_p95 if m else None for _, m in spans]
    top = _nice(max((wait for wait in p50 + p95 if wait is not None), default=0), least=0.001)
    return Chart(
        bars=[],
        p50=_path(p50, top),
        p95=_path(p95, top),
        rows=_rows(top, _seconds),
        columns=columns,
        empty=all(wait is None for wait in p95),
    )


def _path(values: list[float | None], top: float) -> str:
    """An SVG path with gaps where nothing is known; a lone point becomes a short stroke."""
    parts, pen_down = [], False
    for position, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        x = LEFT + PLOT_WIDTH * (position + 0.5) / len(values)
        y = TOP + PLOT_HEIGHT * (1 - min(value / top, 1))
        parts.append(f"L{x:.1f} {y:.1f}" if pen_down else f"M{x - 1:.1f} {y:.1f}L{x:.1f} {y:.1f}")
        pen_down = True
    return "".join(parts)


def _nice(largest: float, least: float = 1) -> float:
    """The next 1, 2 or 5 followed by zeros, so that the axis is easy to read."""
    if largest <= least:
        return least
    unit = 10.0 ** ceil(log10(largest) - 1)
    return next((unit * step for step in (1, 2, 5, 10) if unit * step >= largest), unit * 10)


def _rows(top: float, write: Callable[[float], str]) -> list[Label]:
    marks = [(0.0, 0.0), (0.5, top / 2), (1.0, top)]
    return [Label(f"{TOP + PLOT_HEIGHT * (1 - share):.1f}", write(value)) for share, value in marks]


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:g} min"
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"
