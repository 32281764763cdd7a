"""One page of a list of jobs, at the same cost whatever the table's size.

Each tab reads along an index and continues after the last row of the previous page, or backwards
before the first row of the next page. Filters without an index read a window of rows in that order;
if the window ends before the page is full, the page says so and offers to search further.
"""
# ruff: noqa: S608  (fragments are chosen among constants; every value is a parameter)

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from django.utils import timezone

from jobqueue import redact
from jobqueue.admin.filters import Filters, workers_of
from jobqueue.admin.pagination import BY_END, NEWEST, TABS, Order
from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.models import Job
from jobqueue.states import FINAL, State
from jobqueue.versions import CLAIMABLE, READY_APART, SCHEDULED_APART, TIMED

PAGE = 50
WINDOW = 20_000  # rows that a filter without an index may read
TEXT_WINDOW = 2_000  # jobs whose arguments and errors one page of a text search reads
# Arguments that take more as JSON, or of which it is not known, are not searched.
TEXT_BYTES = 8_192
ERROR_READ = 4_000  # of an error; a row shows its first 300 characters, once it is covered

COLUMNS = (
    "id, task, queue, priority, state, reason, run_at, hold_until, parked_at, attempts, failures,"
    " max_attempts, left(last_error, %(error_length)s) AS last_error, tenant, worker,"
    " cancel_requested_at, enqueued_at, started_at, claimed_at, finished_at, progress"
)


# With a task in the filter: each task's final jobs by their own index, the waiting ones through a
# window of those that come first.
ONE_TASK = """
SELECT j.* FROM unnest(%(tasks)s::text[]) AS t(task)
CROSS JOIN unnest(%(finals)s::text[]) AS s(state)
CROSS JOIN LATERAL (
    SELECT * FROM jobqueue_job f
    WHERE f.task = t.task AND f.state = s.state AND f.state IN ('SUCCEEDED', 'DEAD', 'CANCELLED')
      AND f.id {side} %(edge)s
    ORDER BY f.id {way} LIMIT %(each)s
) j
"""
UNFINISHED = f"""
UNION ALL
SELECT * FROM (
    (SELECT * FROM jobqueue_job WHERE state = 'RUNNING' ORDER BY worker LIMIT %(each_waiting)s)
    UNION ALL
    (SELECT * FROM jobqueue_job WHERE {CLAIMABLE}
     ORDER BY queue, priority DESC, run_at, id LIMIT %(each_waiting)s)
    UNION ALL
    (SELECT * FROM jobqueue_job WHERE {READY_APART}
     ORDER BY suspect, priority DESC, run_at, id LIMIT %(each_waiting)s)
    UNION ALL
    (SELECT * FROM jobqueue_job WHERE {TIMED} ORDER BY run_at LIMIT %(each_waiting)s)
    UNION ALL
    (SELECT * FROM jobqueue_job WHERE {SCHEDULED_APART} ORDER BY parked_at LIMIT %(each_waiting)s)
    UNION ALL
    (SELECT * FROM jobqueue_job WHERE state = 'BLOCKED' ORDER BY id LIMIT %(each_waiting)s)
) u WHERE u.task = ANY(%(tasks)s::text[]) AND u.id {{side}} %(edge)s
"""
EACH_WAITING = 5_000
MORE_WAIT = f"""
SELECT EXISTS (SELECT FROM jobqueue_job WHERE {CLAIMABLE}
        ORDER BY queue, priority DESC, run_at, id OFFSET %(each_waiting)s LIMIT 1)
    OR EXISTS (SELECT FROM jobqueue_job WHERE {READY_APART}
        ORDER BY suspect, priority DESC, run_at, id OFFSET %(each_waiting)s LIMIT 1)
    OR EXISTS (SELECT FROM jobqueue_job WHERE {TIMED}
        ORDER BY run_at OFFSET %(each_waiting)s LIMIT 1)
    OR EXISTS (SELECT FROM jobqueue_job WHERE {SCHEDULED_APART}
        ORDER BY parked_at OFFSET %(each_waiting)s LIMIT 1)
    OR EXISTS (SELECT FROM jobqueue_job WHERE state = 'BLOCKED'
        ORDER BY id OFFSET %(each_waiting)s LIMIT 1)
"""
BIGINT_MAX = 2**63 - 1

# The window is chosen before anything is matched: what its end and the links reveal must not depend
# on values that are covered. The match on the raw text only saves work inside the window.
TEXT = """
SELECT * FROM (SELECT * FROM ({rows}) n ORDER BY {order} LIMIT %(text_window)s) n
WHERE n.last_error ILIKE %(pattern)s
   OR n.args_bytes <= %(text_bytes)s
      AND (n.args::text ILIKE %(pattern)s OR n.kwargs::text ILIKE %(pattern)s)
"""
TEXT_COLUMNS = (
    f"{COLUMNS}, CASE WHEN args_bytes <= %(text_bytes)s THEN args ELSE '[]' END AS args,"
    " CASE WHEN args_bytes <= %(text_bytes)s THEN kwargs ELSE '{}' END AS kwargs,"
    " signature"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The jobs of one page, and how to continue in both directions."""

    jobs: list[Job]
    next: str = ""  # the cursor after which the next page begins
    previous: str = ""  # the cursor before which the previous page ends
    search_on: str = ""  # the cursor after a window that ended before the page was full
    looked_at: int | None = None  # how many jobs a text search read
    truncated: bool = False  # only a part of what could match was read
    more_wait: bool = False  # of the waiting jobs only those that come first were read


def fetch(filters: Filters, after: str = "", before: str = "", size: int = PAGE) -> Page:
    """Return the jobs that match, in the tab's order, after one cursor or before the other."""
    if filters.job_id is not None:
        by_id = filters.having(text="").selection(timezone.now()).queryset()
        return Page(jobs=list(by_id.defer(*stats.HEAVY)[:1]))
    tasks = filters.tasks()
    final = filters.state == "" or filters.state in FINAL
    by_task = tasks is not None and final and not (filters.age and filters.state)
    order = NEWEST if by_task else TABS[filters.state][1]
    backwards = bool(order.read(before))
    cursor = order.read(before if backwards else after)
    order = order.reversed if backwards else order
    if tasks is not None and by_task:
        query = _of_tasks(filters, tasks, order, cursor)
    else:
        query = _of_tab(filters, tasks, order, cursor)
    page = query.run(size)
    if by_task and not filters.state:
        (more,) = stats.row(MORE_WAIT, {"each_waiting": EACH_WAITING})
        page = replace(page, more_wait=more)
    if not backwards:
        first = order.write(page.jobs[0]) if cursor and page.jobs else ""
        return replace(page, previous=first)
    turned = page.jobs[::-1]
    following = order.write(turned[-1]) if turned else ""
    return replace(page, jobs=turned, next=following, previous=page.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    filters: Filters
    rows: str  # candidates, in order, limited to a window
    where: str  # what no index answers
    order: Order
    parameters: dict[str, Any]
    window: int | None  # None: every match is found

    def run(self, size: int) -> Page:
        if self.filters.text:
            return self._search(size)
        order = self.order.clause
        statement = f"SELECT {COLUMNS} FROM ({self._matching}) m ORDER BY {order} LIMIT %(size)s"
        jobs = self._raw(statement, size + 1)
        page, more = jobs[:size], len(jobs) > size
        following = self.order.write(page[-1]) if more else ""
        search_on = "" if more else self._end_of_window()
        return Page(jobs=page, next=following, search_on=search_on, truncated=bool(search_on))

    @property
    def _matching(self) -> str:
        return f"SELECT * FROM ({self.rows}) c WHERE {self.where}"

    def _search(self, size: int) -> Page:
        """One window of a text search. Cursors come from its last row and from what is shown."""
        order = self.order.clause
        found = self._raw(
            f"SELECT {TEXT_COLUMNS} FROM ({TEXT.format(rows=self._matching, order=order)}) m"
            f" ORDER BY {order}",
            size,
        )
        shown = (job for job in found if _shows(job, self.filters.text))
        jobs = list(islice(shown, size + 1))
        last = self._raw(
            f"SELECT {COLUMNS} FROM ({self._matching}) m ORDER BY {order}"
            " OFFSET %(text_window)s - 1 LIMIT 1",
            size,
        )
        if last:
            looked_at, end = TEXT_WINDOW, self.order.write(last[0])
        else:
            looked_at, end = self._count_matching(), self._end_of_window()
        if len(jobs) > size:
            return Page(
                jobs=jobs[:size], next=self.order.write(jobs[size - 1]), looked_at=looked_at
            )
        return Page(jobs=jobs, search_on=end, truncated=bool(end), looked_at=looked_at)

    def _count_matching(self) -> int:
        (number,) = stats.row(f"SELECT count(*) FROM ({self._matching}) m", self.parameters)
        return int(number)

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
        parameters = {
            **self.parameters,
            "size": size,
            "skipped": (self.window or 1) - 1,
            "error_length": ERROR_READ,
        }
        return list(Job.objects.using(settings().database).raw(statement, parameters))


def _of_tab(
    filters: Filters, tasks: list[str] | None, order: Order, cursor: dict[str, Any]
) -> _Query:
    conditions, natural = TABS[filters.state]
    further = f" AND {order.after}" if cursor else ""
    where, parameters = _unindexed(filters, tasks)
    if filters.state == State.READY and filters.queue:
        further += " AND queue = %(queue)s"
    if filters.age and natural is BY_END:
        further += f" AND {_age('finished_at', filters)}"
    ordered = f"ORDER BY {order.clause} LIMIT %(window)s"
    parts = [f"SELECT * FROM jobqueue_job WHERE {c}{further} {ordered}" for c in conditions]
    rows = parts[0]
    if len(parts) > 1:
        rows = f"SELECT * FROM (({') UNION ALL ('.join(parts)})) parts {ordered}"
    parameters |= cursor | {"window": WINDOW}
    return _Query(
        filters=filters, rows=rows, where=where, order=order, parameters=parameters, window=WINDOW
    )


def _of_tasks(filters: Filters, tasks: list[str], order: Order, cursor: dict[str, Any]) -> _Query:
    where, parameters = _unindexed(filters, tasks)
    finals = [filters.state] if filters.state else sorted(FINAL)
    plain = where.startswith("task = ANY") and " AND " not in where
    each = PAGE * 10 + 1 if plain else WINDOW // max(len(tasks) * len(finals), 1)
    if filters.text:
        each = TEXT_WINDOW
    down = order.columns[0][1]
    rows = (ONE_TASK + ("" if filters.state else UNFINISHED)).format(
        side="<" if down else ">", way="DESC" if down else "ASC"
    )
    parameters |= {
        "tasks": tasks,
        "finals": finals,
        "edge": cursor.get("after_id", BIGINT_MAX),
        "each": each,
        "each_waiting": EACH_WAITING,
    }
    return _Query(
        filters=filters, rows=rows, where=where, order=order, parameters=parameters, window=None
    )


def _unindexed(filters: Filters, tasks: list[str] | None) -> tuple[str, dict[str, Any]]:
    terms = []
    if tasks is not None:
        terms.append("task = ANY(%(tasks)s)")
    for name in ("queue", "tenant"):
        if getattr(filters, name):
            terms.append(f"{name} = %({name})s")
    if filters.worker:
        terms.append("worker = ANY(%(workers)s::uuid[])")
    if filters.age and TABS[filters.state][1] is not BY_END:
        terms.append(_age("COALESCE(finished_at, enqueued_at)", filters))
    parameters: dict[str, Any] = {
        "tasks": tasks,
        "queue": filters.queue,
        "tenant": filters.tenant,
        "workers": workers_of(filters.worker) if filters.worker else None,
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
    """Whether the text is in what a page would show: a search must not reveal secrets."""
    arguments = redact.cover_arguments(job.args, job.kwargs, job.signature)
    searched = json.dumps(arguments, ensure_ascii=False) + "\n" + redact.cover_text(job.last_error)
    return text.casefold() in searched.casefold()
