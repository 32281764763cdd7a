"""Hostile addresses, cursors and forms: whatever is sent, no answer is an error of the server."""

import base64
import json
import random
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from jobqueue.admin.pagination import TABS
from jobqueue.models import BulkOrder, Queue, Schedule
from jobqueue.states import State
from tests.web import rows
from tests.web.test_admin_permissions import FORMS, ORDERS, PAGES, ROUTES, TABLES, Things

pytestmark = [
    pytest.mark.long,
    pytest.mark.spec("S228"),
    pytest.mark.django_db,
    pytest.mark.timeout(300),
]
GOOD_ANSWERS = {200, 302, 400, 403, 404, 405}
SEED, DRAWS = 20261201, 100

HUGE = "9" * 5_000
DEEP = "[" * 3_000 + "]" * 3_000
# Percent-encoded where it must reach the server as bytes that are no text.
RAW = ("%ED%A0%80", "%FF%FE", "%00", "a%00b", "%C0%AF", "%F4%90%80%80", "+%0d%0aSet-Cookie:+x=1")
VALUES = (
    *("", " ", "0", "-1", "1e400", "NaN", "Infinity", "-Infinity", "nan", "١٢", "²", "0x10"),
    *(str(2**31), str(2**63), str(2**63 - 1), str(-(2**63) - 1), HUGE, "1.5", "1_000", "+5"),
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-13-45", "10000-01-01"),
    *("2026-01-01T00:00:00", "-0001-01-01", "0000-00-00", "2026-01-01T00:00:00+99:99"),
    *("[]", "{}", "null", "true", DEEP, "[" * 100_000, '{"a":' * 2_000, "[1e999]", "[NaN]"),
    *('["\\ud800"]', '{"\\udfff": 1}', '"\\u0000"', f"[{HUGE}]", "[1e16, -0.0, 1E+400]"),
    *("'", '"', "\\", "%", "_", "%s", "%(x)s", "{0}", "{{ x }}", "../../etc/passwd", "a" * 5_000),
    *("\u202e", "\ufeff", "İ", "ǅ", "👩‍👩‍👧", "\u2028", "ﷺ" * 50, "e\u0301" * 100),
    *("state=DEAD&state=READY", "a=1&" * 1_500, "UTC", "Europe/Berlin/..", "* * * * *", "."),
    *("*/0 * * * *", "999999999999 * * * *", "0-59/99999999 * * * *", "os.system", "0 0 30 2 *"),
)  # fmt: skip
MOMENTS = (
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "2026-01-01", "infinity"),
    *("-infinity", 5, 1e308, float("inf"), float("nan"), None, [], {}, True, "\ud800", "", HUGE),
)
NUMBERS = (
    *(0, -1, 2**31, 2**63, -(2**63), 2**64, 1e308, float("inf"), float("nan"), None, True),
    *("7", HUGE, "١٢", "NaN", [], {}, "\ud800", 0.5, 10**400),
)


def quoted(value: str) -> str:
    return value if value in RAW else quote_plus(value.encode("utf-8", "surrogatepass"))


def encoded(values: object) -> str:
    return quoted(base64.urlsafe_b64encode(json.dumps(values).encode()).decode())


def cursors() -> Iterator[tuple[str, str]]:
    """The tab, and what a tampered cursor of its order may hold."""
    plain = [*VALUES[:20], "====", "AAAA", "W10=", "!" * 1_200]
    plain += [base64.urlsafe_b64encode(data).decode() for data in (b"\xff\xfe", b"[" * 700, b"{}")]
    yield from (("READY", quoted(text)) for text in plain)
    for tab, order in {order.clause: (tab, order) for tab, (_, order) in TABS.items()}.values():
        of_moments = [name.endswith("_at") for name, _, _ in order.columns]
        good = ["2026-01-01T00:00:00+00:00" if moment else 5 for moment in of_moments]
        for place, moment in enumerate(of_moments):
            for bad in MOMENTS if moment else NUMBERS:
                yield tab, encoded([*good[:place], bad, *good[place + 1 :]])


class Fuzz:
    """Sends, and collects every answer that is not among the good ones."""

    def __init__(self, client: Client) -> None:
        self.client, self.sent, self.bad = client, 0, []
        client.raise_request_exception = False

    def send(self, method: str, address: str, body: str = "", **headers: str) -> None:
        """One request, of which nothing stays."""
        with transaction.atomic():
            answer = self.client.generic(
                method,
                address,
                body,
                content_type="application/x-www-form-urlencoded",
                headers=headers or None,
            )
            transaction.set_rollback(True)
        self.sent += 1
        if answer.status_code not in GOOD_ANSWERS:
            what = f"{method} {address[:200]} {body[:200]} {headers} -> {answer.status_code}"
            error = getattr(answer, "exc_info", None)
            self.bad.append(f"{what}: {error[1]!r}"[:600] if error else what)


@pytest.fixture
def fuzz(operator: Client) -> Iterator[Fuzz]:
    made = Fuzz(operator)
    yield made
    assert made.sent > 20
    assert not made.bad, "\n".join([f"{len(made.bad)} of {made.sent}", *made.bad[:40]])


@pytest.fixture
def things(operators_tasks: None) -> Things:
    jobs = [rows.job(state) for state in State]
    Queue.objects.create(name="mail", paused_at=timezone.now())
    schedule = Schedule.objects.create(name="nightly", task=rows.TASK, args=[1], cron="0 3 * * *")
    order = BulkOrder.objects.create(
        verb="retry", filter={}, moment=timezone.now(), nonce="1", asker_id="1", asker="ann"
    )
    return Things(jobs[0].pk, rows.worker().pk, schedule.pk, order.pk)


FILTERS = ("state", "worker", "age", "q", "text", "task", "queue", "tenant", "after", "x")
# Which fields of which act are sent with everything; the act's other fields are good ones.
FIELDS = {
    ("job_act", "retry"): ("job", "scope", "filter", "as_of", "nonce", "next", "reason"),
    ("job_act", "priority"): ("priority",),
    ("job_act", "move"): ("queue",),
    ("queue_act", "pause"): ("next", "reason"),
    ("schedule_act", "run"): ("next", "reason"),
    ("schedule_new", ""): (
        *("name", "task", "cron", "timezone", "args", "kwargs", "queue", "priority", "catch_up"),
    ),
    ("schedule_edit", ""): ("args", "priority"),
    ("bulkorder_act", "resume"): ("next", "reason"),
    ("bulkorder_drive", ""): ("x",),
}
PLAIN = {"name", "timezone", "queue", "catch_up", "next", "reason", "x"}  # read as a text only
SCHEDULE = {
    "name": "another",
    "task": rows.TASK,
    "cron": "5 5 * * *",
    "timezone": "UTC",
    "args": "[1]",
    "kwargs": "{}",
    "queue": "",
    "priority": "5",
    "catch_up": "once",
}


def test_no_filter_of_a_list_gives_an_error_of_the_server(fuzz: Fuzz, things: Things) -> None:
    for number, name in enumerate(FILTERS):
        for value in (*VALUES, *RAW) if number < 5 else (*VALUES[::5], *RAW):
            fuzz.send("GET", f"/admin/jobqueue/job/?{name}={quoted(value)}")
        for pair in (f"{name}[]=1", name, f"{name}=1&{name}=2", f"{name}={HUGE}&age=x"):
            fuzz.send("GET", f"/admin/jobqueue/job/?{pair}")


def test_no_cursor_gives_an_error_of_the_server(fuzz: Fuzz, things: Things) -> None:
    for number, (tab, cursor) in enumerate(cursors()):
        way = ("after", "before")[number % 2]
        fuzz.send("GET", f"/admin/jobqueue/job/?state={tab}&{way}={cursor}")
    for bad in NUMBERS:
        fuzz.send("GET", f"/admin/jobqueue/job/?task={rows.TASK}&after={encoded([bad])}")
        fuzz.send("GET", f"/admin/jobqueue/job/?text=x&before={encoded([bad])}")


def test_no_address_gives_an_error_of_the_server(fuzz: Fuzz, things: Things) -> None:
    parts = [*RAW, *(quote(value[:500], safe="") for value in VALUES if value.strip("./"))]
    for name in ROUTES:
        route = ROUTES[name]
        for part in parts:
            address = route
            for placeholder in ("<int:pk>", "<uuid:pk>", "<str:pk>", "<slug:name>"):
                address = address.replace(placeholder, part)
            if address == route:
                continue
            for method in ("GET", "POST"):
                fuzz.send(method, address, "confirmed=1" if method == "POST" else "")
        for method in ("HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
            fuzz.send(method, things.address(name, "retry"))


@pytest.mark.parametrize(("name", "act"), FIELDS)
def test_no_form_gives_an_error_of_the_server(
    fuzz: Fuzz, things: Things, name: str, act: str
) -> None:
    assert {route for route, _ in FIELDS} == {*TABLES, *FORMS, *ORDERS}
    address = things.address(name, act)
    good = {"job": str(things.job), "confirmed": "1", "reason": "", "priority": "1"}
    good |= {"queue": "mail"} if name == "job_act" else {}
    good = SCHEDULE if name in FORMS else good
    for field in FIELDS[name, act]:
        for value in (*(VALUES[::4] if field in PLAIN else VALUES), *RAW):
            changed = good | {field: value}
            if field in ("filter", "nonce", "as_of"):
                changed |= {"scope": "all", "filter": changed.get("filter", "state=DEAD")}
            fuzz.send("POST", address, form(changed))
    for body in ("", "=", "&&&", "%", "a=1&" * 1_200, "\0", "confirmed=1&confirmed=2", "[]"):
        fuzz.send("POST", address, body)
    for kind in ("job", "scope", "filter"):
        for twice in ("x", "1", "state=DEAD"):
            for more in ("", "&confirmed=1", "&confirmed=1&as_of=2026-01-01T00:00:00Z"):
                fuzz.send("POST", address, f"{kind}={twice}&{kind}=all{more}")


def form(fields: dict[str, str]) -> str:
    return "&".join(f"{name}={quoted(text)}" for name, text in fields.items())


def test_no_header_or_cookie_gives_an_error_of_the_server(fuzz: Fuzz, things: Things) -> None:
    for value in (*VALUES, "en;q=" + "9" * 400, "../../zone", "Mars/Base", "/etc/passwd", "."):
        text = quote(value[:400])
        fuzz.client.cookies["jobqueue_zone"] = text
        headers = {"HX-Request": text, "Accept-Language": text}
        fuzz.send("GET", things.address("schedule_change"), **headers)


def test_no_mixture_gives_an_error_of_the_server(fuzz: Fuzz, things: Things) -> None:
    """Drawn, always the same: the seed and the number stand above."""
    draw = random.Random(SEED)
    every = [*VALUES, *RAW, *TABS, "1", rows.TASK, "mail", "over-1h"]
    tampered = [cursor for _, cursor in cursors()]
    fields = sorted({*SCHEDULE, "confirmed", *(one for some in FIELDS.values() for one in some)})
    for _ in range(DRAWS):
        query = form({name: draw.choice(every) for name in draw.sample(FILTERS, 3)})
        where = "/admin/jobqueue/job/"
        if draw.random() < 0.3:
            where = things.address(draw.choice([*PAGES, *FORMS]))
        fuzz.send("GET", f"{where}?{query}&after={draw.choice(tampered)}")
        name, act = draw.choice(list(FIELDS))
        sent = {field: draw.choice(every) for field in draw.sample(fields, 6)}
        fuzz.send("POST", things.address(name, act), form(sent))
