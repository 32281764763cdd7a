"""When schedules tick: against tables of the days on which clocks change, and a plain search."""

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobqueue.scheduling import cron

BERLIN, NEW_YORK, LORD_HOWE, KOLKATA = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour of daylight saving, in the southern summer
    "Asia/Kolkata",  # none
)


def local_ticks(expression, zone, day, days=1):
    """The ticks within local days, as the clock on the wall and the offset in minutes."""
    info = ZoneInfo(zone)
    start = datetime.combine(day, datetime.min.time(), info).astimezone(UTC)
    end = datetime.combine(day + timedelta(days=days), datetime.min.time(), info).astimezone(UTC)
    found = []
    for tick in cron.ticks(expression, zone, start - timedelta(seconds=1)):
        if tick >= end:
            break
        wall = tick.astimezone(info)
        found.append(f"{wall:%H:%M} {wall.utcoffset().total_seconds() / 60:+.0f}")
    return found


SPRING = [
    # zone, day, expression, ticks of that day
    (BERLIN, date(2026, 3, 29), "30 2 * * *", ["03:00 +120"]),
    (BERLIN, date(2026, 3, 29), "0 6 * * *", ["06:00 +120"]),
    (BERLIN, date(2026, 3, 29), "30 1 * * *", ["01:30 +60"]),
    (BERLIN, date(2026, 3, 29), "0,30 2 * * *", ["03:00 +120"]),
    (BERLIN, date(2026, 3, 29), "0 2,3 * * *", ["03:00 +120"]),
    (
        BERLIN,
        date(2026, 3, 29),
        "30 1-4 * * *",
        ["01:30 +60", "03:00 +120", "03:30 +120", "04:30 +120"],
    ),
    (NEW_YORK, date(2026, 3, 8), "30 2 * * *", ["03:00 -240"]),
    (NEW_YORK, date(2026, 3, 8), "0 6 * * *", ["06:00 -240"]),
    (LORD_HOWE, date(2026, 10, 4), "15 2 * * *", ["02:30 +660"]),
    (LORD_HOWE, date(2026, 10, 4), "45 2 * * *", ["02:45 +660"]),
    (KOLKATA, date(2026, 3, 29), "30 2 * * *", ["02:30 +330"]),
]
AUTUMN = [
    (BERLIN, date(2026, 10, 25), "30 2 * * *", ["02:30 +120"]),
    (BERLIN, date(2026, 10, 25), "0 6 * * *", ["06:00 +60"]),
    (BERLIN, date(2026, 10, 25), "0 2,3 * * *", ["02:00 +120", "03:00 +60"]),
    (NEW_YORK, date(2026, 11, 1), "30 1 * * *", ["01:30 -240"]),
    (LORD_HOWE, date(2026, 4, 5), "45 1 * * *", ["01:45 +660"]),
    (LORD_HOWE, date(2026, 4, 5), "15 2 * * *", ["02:15 +630"]),
    (KOLKATA, date(2026, 10, 25), "30 2 * * *", ["02:30 +330"]),
]


@pytest.mark.spec("S188", "D53")
@pytest.mark.parametrize(("zone", "day", "expression", "expected"), SPRING)
def test_a_time_in_the_gap_of_spring_ticks_once_right_after_it(zone, day, expression, expected):
    assert local_ticks(expression, zone, day) == expected


@pytest.mark.spec("S188", "D54")
@pytest.mark.parametrize(("zone", "day", "expression", "expected"), AUTUMN)
def test_a_time_in_the_repeated_hour_of_autumn_ticks_the_first_time_only(
    zone, day, expression, expected
):
    assert local_ticks(expression, zone, day) == expected


@pytest.mark.spec("S188", "D54")
@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        (BERLIN, date(2026, 3, 29), 23),
        (BERLIN, date(2026, 10, 25), 25),
        (NEW_YORK, date(2026, 3, 8), 23),
        (NEW_YORK, date(2026, 11, 1), 25),
        (LORD_HOWE, date(2026, 10, 4), 23.5),
        (LORD_HOWE, date(2026, 4, 5), 24.5),
        (KOLKATA, date(2026, 3, 29), 24),
    ],
)
def test_every_quarter_of_an_hour_keeps_its_real_distance(zone, day, hours):
    start = datetime.combine(day, datetime.min.time(), ZoneInfo(zone)).astimezone(UTC)
    found = list(islice(cron.ticks("*/15 * * * *", zone, start), int(hours * 4) + 8))
    gaps = {later - earlier for earlier, later in zip([start, *found], found, strict=False)}
    assert gaps == {timedelta(minutes=15)}
    assert len(local_ticks("*/15 * * * *", zone, day)) == hours * 4


INTERVALS = [
    # In autumn every passing of the hour counts; in spring there is none.
    (BERLIN, date(2026, 3, 29), "*/30 2 * * *", []),
    (BERLIN, date(2026, 3, 29), "*/30 1-3 * * *", "01:00 +60,01:30 +60,03:00 +120,03:30 +120"),
    (BERLIN, date(2026, 10, 25), "*/30 2 * * *", "02:00 +120,02:30 +120,02:00 +60,02:30 +60"),
    (NEW_YORK, date(2026, 3, 8), "*/30 2 * * *", []),
    (NEW_YORK, date(2026, 11, 1), "*/30 1 * * *", "01:00 -240,01:30 -240,01:00 -300,01:30 -300"),
    (LORD_HOWE, date(2026, 10, 4), "*/15 2 * * *", "02:30 +660,02:45 +660"),
    (
        LORD_HOWE,
        date(2026, 4, 5),
        "*/15 1 * * *",
        "01:00 +660,01:15 +660,01:30 +660,01:45 +660,01:30 +630,01:45 +630",
    ),
    (KOLKATA, date(2026, 10, 25), "*/30 2 * * *", "02:00 +330,02:30 +330"),
]


@pytest.mark.spec("S188")
@pytest.mark.parametrize(("zone", "day", "expression", "expected"), INTERVALS)
def test_an_interval_goes_by_real_time_when_the_clocks_change(zone, day, expression, expected):
    assert local_ticks(expression, zone, day) == (expected.split(",") if expected else [])


@pytest.mark.spec("S188")
def test_hourly_ticks_both_times_in_autumn_and_skips_the_gap_in_spring():
    assert len(local_ticks("0 * * * *", BERLIN, date(2026, 10, 25))) == 25
    assert len(local_ticks("0 * * * *", BERLIN, date(2026, 3, 29))) == 23


@pytest.mark.spec("D53")
def test_every_second_hour_is_right_where_the_clock_changes_by_half_an_hour():
    expected = [f"{hour:02}:00 {'+660' if hour < 2 else '+630'}" for hour in range(0, 24, 2)]
    assert local_ticks("0 */2 * * *", LORD_HOWE, date(2026, 4, 5)) == expected


@pytest.mark.spec("S188", "A17", "D55")
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, KOLKATA])
def test_daily_at_six_is_at_six_local_every_day_of_a_year(zone):
    start = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
    found = [
        tick.astimezone(ZoneInfo(zone))
        for tick in islice(cron.ticks("0 6 * * *", zone, start), 365)
    ]
    assert [tick.date() for tick in found] == [
        date(2026, 1, 1) + timedelta(days=n) for n in range(365)
    ]
    assert {(tick.hour, tick.minute) for tick in found} == {(6, 0)}


@pytest.mark.spec("D53")
def test_a_day_that_a_zone_left_out_has_its_time_at_the_first_moment_after_it():
    before = datetime(2011, 12, 29, 12, tzinfo=ZoneInfo("Pacific/Apia"))
    found = list(islice(cron.ticks("0 8 * * *", "Pacific/Apia", before), 2))
    walls = [tick.astimezone(ZoneInfo("Pacific/Apia")) for tick in found]
    assert [f"{wall:%d %H:%M}" for wall in walls] == ["31 00:00", "31 08:00"]


@pytest.mark.spec("D54")
@pytest.mark.parametrize("moment", ["2026-10-25T00:30:00", "2026-10-25T01:10:00"])
def test_asked_within_the_repeated_hour_a_daily_time_does_not_tick_again(moment):
    after = datetime.fromisoformat(moment).replace(tzinfo=UTC)  # 02:30 +2 and 02:10 +1 in Berlin
    assert cron.next_tick("30 2 * * *", BERLIN, after) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


REFUSED = [
    ("", "empty"),
    ("   ", "empty"),
    ("* * * *", "4 fields"),
    ("0 * * * * *", "6 fields"),
    ("@daily", "five fields"),
    ("60 * * * *", "minute field '60'"),
    ("* 24 * * *", "hour field '24'"),
    ("*/0 * * * *", "minute field"),
    ("5-1 * * * *", "minute field '5-1'"),
    ("* * * 13 *", "month field"),
    ("* * * * 8", "day of the week field"),
    ("* * * * FOO", "day of the week field 'FOO'"),
    ("0 0 31 2 *", "day 31"),
    ("0 0 30 2 *", "day 30"),
    ("0 0 31 4,6 *", "day 31"),
    ("1,,2 * * * *", "minute field"),
    ("9" * 5000 + " * * * *", "too long"),
    (None, "empty"),
]


@pytest.mark.spec("S186", "D56")
@pytest.mark.parametrize(("expression", "says"), REFUSED, ids=lambda value: str(value)[:20])
def test_a_malformed_or_impossible_expression_is_refused_with_a_sentence(expression, says):
    with pytest.raises(cron.CronError, match=says):
        cron.check(expression)


@pytest.mark.parametrize("name", ["", "Europe/Nowhere", "Europe", "../etc/passwd", "a\0b", None])
def test_an_unknown_time_zone_is_refused(name):
    with pytest.raises(cron.CronError, match="not a time zone"):
        cron.check("* * * * *", name)


@pytest.mark.spec("D56")
def test_the_29th_of_february_ticks_in_leap_years():
    found = list(islice(cron.ticks("0 0 29 2 *", "UTC", datetime(2026, 1, 1, tzinfo=UTC)), 3))
    assert [(tick.year, tick.month, tick.day) for tick in found] == [
        (2028, 2, 29),
        (2032, 2, 29),
        (2036, 2, 29),
    ]


DAYS = [
    # Both days restricted: either suffices, as in every cron.
    ("0 9 1 * 1", lambda day: day.day == 1 or day.isoweekday() == 1),
    ("0 9 * * 0", lambda day: day.isoweekday() == 7),
    ("0 9 * * 7", lambda day: day.isoweekday() == 7),
    ("0 9 * * SUN", lambda day: day.isoweekday() == 7),
    ("0 9 * * 1-5", lambda day: day.isoweekday() <= 5),
    ("0 9 * * mon-fri", lambda day: day.isoweekday() <= 5),
    # A field that starts with a star does not count as restricted: both must fit.
    ("0 9 */2 * 1", lambda day: day.day % 2 == 1 and day.isoweekday() == 1),
    ("0 9 15 * */2", lambda day: day.day == 15 and day.isoweekday() in (2, 4, 6, 7)),
    ("0 9 * JAN,jul *", lambda day: day.month in (1, 7)),
]


@pytest.mark.spec("D57")
@pytest.mark.parametrize(("expression", "fits"), DAYS)
def test_the_days_are_those_of_standard_cron(expression, fits):
    start = date(2026, 1, 1)
    days = [day for n in range(1500) if fits(day := start + timedelta(days=n))][:20]
    after = datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert [tick.date() for tick in islice(cron.ticks(expression, "UTC", after), 20)] == days


def field(low, high):
    value = st.integers(low, high)
    span = st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}")
    # A step after a single value runs to the field's end here, unlike in some crons: see the docs.
    wide = span.filter(lambda text: len(set(text.split("-"))) == 2)
    part = value.map(str) | span | st.tuples(wide, st.integers(1, 9)).map("{0[0]}/{0[1]}".format)
    return st.lists(part, min_size=1, max_size=3).map(",".join)


def members(text, low, high):
    """The values that a field names, read in the plainest way."""
    found = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


stars = st.sampled_from(["*", "*/5", "*/7", "*/15", "*/20"])
minutes = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(
    lambda moment: moment.replace(second=0, microsecond=0, tzinfo=UTC)
)
zones = st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, KOLKATA, "UTC"])
near_changes = st.sampled_from(
    [
        datetime(2026, 3, 28, 22, tzinfo=UTC),
        datetime(2026, 10, 24, 22, tzinfo=UTC),
        datetime(2026, 3, 8, 3, tzinfo=UTC),
        datetime(2026, 11, 1, 3, tzinfo=UTC),
        datetime(2026, 4, 4, 12, tzinfo=UTC),
        datetime(2026, 10, 3, 12, tzinfo=UTC),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    stars | field(0, 59),
    stars.map(lambda text: text.replace("15", "6").replace("20", "8")),
    zones,
    near_changes | minutes,
)
def test_an_interval_ticks_whenever_the_clock_on_the_wall_fits(minute, hour, zone, start):
    info = ZoneInfo(zone)
    in_minutes, in_hours = members(minute, 0, 59), members(hour, 0, 23)
    expected = []
    for n in range(1, 36 * 60):
        moment = start + timedelta(minutes=n)
        wall = moment.astimezone(info)
        if wall.minute in in_minutes and wall.hour in in_hours:
            expected.append(moment)
    found = islice(cron.ticks(f"{minute} {hour} * * *", zone, start), len(expected))
    assert list(found) == expected


@settings(max_examples=150, deadline=None)
@given(field(0, 59), field(0, 23), zones, near_changes | minutes)
def test_times_of_the_day_tick_once_a_day_each(minute, hour, zone, start):
    info = ZoneInfo(zone)
    expected = set()
    first = start.astimezone(info).date() - timedelta(days=1)
    for n in range(4):
        for h in members(hour, 0, 23):
            for m in members(minute, 0, 59):
                day = first + timedelta(days=n)
                wall = datetime(day.year, day.month, day.day, h, m, tzinfo=info)
                while wall.astimezone(UTC).astimezone(info).replace(tzinfo=None) != wall.replace(
                    tzinfo=None
                ):
                    wall += timedelta(minutes=1)
                expected.add(wall.astimezone(UTC))
    end = start + timedelta(hours=30)
    expected = sorted(moment for moment in expected if start < moment <= end)
    found = islice(cron.ticks(f"{minute} {hour} * * *", zone, start), len(expected))
    assert list(found) == expected


def utc(text):
    return datetime.fromisoformat(f"2026-10-{text}").replace(tzinfo=UTC)


HOURLY, DAILY = "0 * * * *", "30 2 * * *"
CATCH_UP = [
    # After a night without a leader in which the clocks of Berlin went back at 01:00 UTC.
    (HOURLY, "24T22:00", "25T02:30", "all", "24T22:00 24T23:00 25T00:00 25T01:00 25T02:00"),
    (HOURLY, "24T22:00", "25T02:30", "once", "25T02:00"),
    (HOURLY, "24T22:00", "25T02:30", "skip", ""),
    (HOURLY, "24T22:00", "25T02:01", "skip", "25T02:00"),  # a minute late is in time
    (DAILY, "25T00:30", "25T01:40", "all", "25T00:30"),  # 02:30 came, and 02:30 again
    (DAILY, "25T00:30", "25T01:40", "once", "25T00:30"),
    (DAILY, "23T00:30", "25T04:00", "once", "25T00:30"),
    (DAILY, "23T00:30", "25T04:00", "all", "25T00:30"),  # of the last day
    (HOURLY, "25T02:00", "25T02:00", "once", "25T02:00"),
]


@pytest.mark.spec("S187", "S188")
@pytest.mark.parametrize(("expression", "planned", "now", "catch_up", "expected"), CATCH_UP)
def test_what_is_made_up_after_a_night_in_which_the_clocks_went_back(
    expression, planned, now, catch_up, expected
):
    found = cron.due_ticks(expression, BERLIN, utc(planned), utc(now), catch_up)
    assert found == [utc(text) for text in expected.split()]


@pytest.mark.spec("S187")
def test_all_is_bounded_by_a_day_and_by_a_hundred_at_once_and_goes_on_where_it_was():
    now, minute = utc("25T12:00"), timedelta(minutes=1)
    made, planned = [], utc("20T00:00")
    while planned <= now:
        found = cron.due_ticks("* * * * *", BERLIN, planned, now, "all")
        assert len(found) <= cron.CATCH_UP_AT_ONCE
        made += found
        planned = cron.next_tick("* * * * *", BERLIN, found[-1])
    first = now - cron.CATCH_UP_WINDOW + minute
    assert made == [first + n * minute for n in range(24 * 60)]


@pytest.mark.spec("S187")
@pytest.mark.parametrize("catch_up", ["skip", "once"])
def test_years_of_missed_minutes_are_one_look_back(catch_up):
    now = utc("25T12:00")
    found = cron.due_ticks("* * * * *", BERLIN, datetime(1990, 1, 1, tzinfo=UTC), now, catch_up)
    assert found == [now]
