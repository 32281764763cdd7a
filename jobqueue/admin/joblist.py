"""One page of a list of jobs, at the same price whatever the table's size.

Each tab reads along an index and goes on after the last row of the page before. Filters that no
index answers look at a window of rows in that order; where the window ends before the page is
full, the page says so and offers to search on.
"""
# ruff: noqa: S608  (fragments are chosen among constants; every value is a parameter)

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobqueue import redact, stats
from jobqueue.admin.filters import Filters
from jobqueue.conf import settings
from jobqueue.models import Job
from jobqueue.states import FINAL, State

PAGE = 50
WINDOW = 20_000  # rows that a filter without an index may look at
TEXT_WINDOW = 10_000  # jobs whose arguments and errors a text search reads
TEXT_BYTES = 8_192  # larger arguments are not searched
ERROR_SHOWN = 300

COLUMNS = (
    "id, task, queue, priority, state, reason, run_at, hold_until, parked_at, attempts, failures,"
    f" max_attempts, left(last_error, {ERROR_SHOWN}) AS last_error, tenant, worker,"
    " cancel_requested_at, enqueued_at, started_at, claimed_at, finished_at, progress"
)


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _number(value: Any) -> int:
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(value)
    return number


def _text(value: Any) -> str:
    return str(value).replace("\0", "")


@dataclass(frozen=True, slots=True)
class Order:
    """How a tab is sorted: columns with their direction, an index behind them, unique in all."""

    columns: tuple[tuple[str, bool, Callable[[Any], Any]], ...]  # name, descending, parser

    @property
    def clause(self) -> str:
        return ", ".join(f"{name} DESC" if down else name for name, down, _ in self.columns)

    @property
    def after(self) -> str:
        """The rows behind the cursor. The first term alone bounds the index scan."""
        first, down, _ = self.columns[0]
        terms, equal = [], ""
        for name, descending, _ in self.columns:
            terms.append(f"({equal}{name} {'<' if descending else '>'} %(after_{name})s)")
            equal += f"{name} = %(after_{name})s AND "
        return f"{first} {'<=' if down else '>='} %(after_{first})s AND ({' OR '.join(terms)})"

    def read(self, cursor: str) -> dict[str, Any]:
        """Return the cursor's parameters; none when it is empty or was tampered with."""
        try:
            values = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            return {
                f"after_{name}": parse(value)
                for (name, _, parse), value in zip(self.columns, values, strict=True)
            }
        except (ValueError, TypeError, binascii.Error, RecursionError):
            return {}

    def write(self, job: Job) -> str:
        values = [getattr(job, name) for name, _, _ in self.columns]
        text = json.dumps([v.isoformat() if isinstance(v, datetime) else v for v in values])
        return base64.urlsafe_b64encode(text.encode()).decode()


_ID = ("id", False, _number)
NEWEST = Order((("id", True, _number),))
BY_END = Order((("finished_at", True, _moment), ("id", True, _number)))
BY_DUE = Order((("run_at", False, _moment), _ID))
BY_START = Order((("claimed_at", False, _moment), _ID))
BY_CLAIM = Order(
    (("queue", False, _text), ("priority", True, _number), ("run_at", False, _moment), _ID)
)
BY_ID = Order((_ID,))

TABS: dict[str, tuple[str, Order]] = {
    "": ("TRUE", NEWEST),
    State.SCHEDULED: ("state = 'SCHEDULED'", BY_DUE),
    stats.RETRYING: ("state = 'SCHEDULED' AND failures > 0", BY_DUE),
    State.READY: ("state = 'READY'", BY_CLAIM),
    State.BLOCKED: ("state = 'BLOCKED'", BY_ID),
    State.RUNNING: ("state = 'RUNNING'", BY_START),
    State.SUCCEEDED: ("state = 'SUCCEEDED'", BY_END),
    State.DEAD: ("state = 'DEAD'", BY_END),
    State.CANCELLED: ("state = 'CANCELLED'", BY_END),
}
# With a task in the filter: each task's final jobs by their own index, the waiting ones through a
# window of those that come first.
ONE_TASK = """
SELECT j.* FROM unnest(%(tasks)s::text[]) AS t(task)
CROSS JOIN unnest(%(finals)s::text[]) AS s(state)
CROSS JOIN LATERAL (
    SELECT * FROM jobqueue_job f
    WHERE f.task = t.task AND f.state = s.state AND f.state IN ('SUCCEEDED', 'DEAD', 'CANCELLED')
      AND f.id < %(before)s
    ORDER BY f.id DESC LIMIT %(each)s
) j
"""
UNFINISHED = """
UNION ALL
SELECT * FROM (
    (SELECT * FROM jobqueue_job WHERE state = 'RUNNING' LIMIT %(each_waiting)s)
    UNION ALL
    (SELECT * FROM jobqueue_job WHERE state = 'READY'
     ORDER BY queue, priority DESC, run_at, id LIMIT %(each_waiting)s)
    UNION ALL
    (SELECT * FROM jobqueue_job WHERE state = 'SCHEDULED' ORDER BY run_at LIMIT %(each_waiting)s)
) u WHERE u.task = ANY(%(tasks)s::text[]) AND u.id < %(before)s
"""
EACH_WAITING = 5_000
BIGINT_MAX = 2**63 - 1

TEXT = """
SELECT * FROM (SELECT * FROM ({rows}) n ORDER BY {order} LIMIT %(text_window)s) n
WHERE n.last_error ILIKE %(pattern)s
   OR pg_column_size(n.args) < %(text_bytes)s AND n.args::text ILIKE %(pattern)s
   OR pg_column_size(n.kwargs) < %(text_bytes)s AND n.kwargs::text ILIKE %(pattern)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The jobs of one page, and how to go on."""

    jobs: list[Job]
    next: str = ""  # the cursor of the next page
    search_on: str = ""  # the cursor behind a window that ended before the page was full
    truncated: bool = False  # only a part of what could match was looked at


def fetch(filters: Filters, after: str = "", size: int = PAGE) -> Page:
    """Return the jobs that match, in the tab's order, behind the cursor."""
    if filters.job_id is not None:
        return Page(jobs=list(filters.queryset().defer(*stats.HEAVY)[:1]))
    tasks = filters.tasks()
    final = filters.state == "" or filters.state in FINAL
    if tasks is not None and final and not (filters.age and filters.state):
        query = _of_tasks(filters, tasks, after)
    else:
        query = _of_tab(filters, tasks, after)
    return query.run(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    filters: Filters
    rows: str  # candidates, in order, limited to a window
    where: str  # what no index answers
    order: Order
    parameters: dict[str, Any]
    window: int | None  # None: every match is found

    def run(self, size: int) -> Page:
        order = self.order.clause
        rows = f"SELECT * FROM ({self.rows}) c WHERE {self.where}"
        columns = COLUMNS
        if self.filters.text:
            rows = TEXT.format(rows=rows, order=order)
            columns += (
                f", CASE WHEN pg_column_size(args) < {TEXT_BYTES} THEN args ELSE '[]' END AS args,"
                f" CASE WHEN pg_column_size(kwargs) < {TEXT_BYTES} THEN kwargs ELSE '{{}}' END"
                " AS kwargs, signature"
            )
        statement = f"SELECT {columns} FROM ({rows}) m ORDER BY {order} LIMIT %(size)s"
        jobs = self._raw(statement, size + 1)
        page, more = jobs[:size], len(jobs) > size
        following = self.order.write(page[-1]) if more else ""
        if self.filters.text:
            page = [job for job in page if _shows(job, self.filters.text)]
        search_on = "" if more else self._end_of_window()
        return Page(
            jobs=page,
            next=following,
            search_on=search_on,
            truncated=bool(search_on) or (self.filters.text != "" and not more),
        )

    def _end_of_window(self) -> str:
        if self.window is None or self.where == "TRUE":
            return ""
        last = self._raw(
            f"SELECT {COLUMNS} FROM ({self.rows}) c ORDER BY {self.order.clause}"
            " OFFSET %(skipped)s LIMIT %(size)s",
            1,
        )
        return self.order.write(last[0]) if last else ""

    def _raw(self, statement: str, size: int) -> list[Job]:
        parameters = {**self.parameters, "size": size, "skipped": (self.window or 1) - 1}
        return list(Job.objects.using(settings().database).raw(statement, parameters))


def _of_tab(filters: Filters, tasks: list[str] | None, after: str) -> _Query:
    condition, order = TABS[filters.state]
    parameters = order.read(after)
    if parameters:
        condition += f" AND {order.after}"
    where, extra = _unindexed(filters, tasks)
    if filters.state == State.READY and filters.queue:
        condition += " AND queue = %(queue)s"
    if filters.age and order is BY_END:
        condition += f" AND {_age('finished_at', filters)}"
    rows = f"SELECT * FROM jobqueue_job WHERE {condition} ORDER BY {order.clause} LIMIT %(window)s"
    parameters |= extra | {"window": WINDOW}
    return _Query(
        filters=filters, rows=rows, where=where, order=order, parameters=parameters, window=WINDOW
    )


def _of_tasks(filters: Filters, tasks: list[str], after: str) -> _Query:
    before = NEWEST.read(after).get("after_id", BIGINT_MAX)
    where, parameters = _unindexed(filters, tasks)
    finals = [filters.state] if filters.state else sorted(FINAL)
    plain = where.startswith("task = ANY") and " AND " not in where
    each = PAGE * 10 + 1 if plain else WINDOW // max(len(tasks) * len(finals), 1)
    rows = ONE_TASK + ("" if filters.state else UNFINISHED)
    parameters |= {
        "tasks": tasks,
        "finals": finals,
        "before": before,
        "each": each,
        "each_waiting": EACH_WAITING,
    }
    return _Query(
        filters=filters, rows=rows, where=where, order=NEWEST, parameters=parameters, window=None
    )


def _unindexed(filters: Filters, tasks: list[str] | None) -> tuple[str, dict[str, Any]]:
    terms = []
    if tasks is not None:
        terms.append("task = ANY(%(tasks)s)")
    for name in ("queue", "tenant", "worker"):
        if getattr(filters, name):
            terms.append(f"{name} = %({name})s")
    if filters.age and TABS[filters.state][1] is not BY_END:
        terms.append(_age("COALESCE(finished_at, enqueued_at)", filters))
    parameters: dict[str, Any] = {
        "tasks": tasks,
        "queue": filters.queue,
        "tenant": filters.tenant,
        "worker": filters.worker or None,
        "text_window": TEXT_WINDOW,
        "text_bytes": TEXT_BYTES,
        "pattern": f"%{_escaped(filters.text)}%",
    }
    if bound := filters.age_bound:
        parameters["span"] = bound[1]
    return " AND ".join(terms) or "TRUE", parameters


def _age(column: str, filters: Filters) -> str:
    return f"{column} {'>=' if filters.age.startswith('under') else '<'} now() - %(span)s::interval"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _shows(job: Job, text: str) -> bool:
    """Whether the text stands in what a page would show: a search must not find out secrets."""
    shown = redact.arguments(job.args, job.kwargs, job.signature)
    searched = json.dumps(shown, ensure_ascii=False).casefold()
    return text.casefold() in job.last_error.casefold() or text.casefold() in searched
