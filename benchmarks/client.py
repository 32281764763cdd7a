"""The web side of a measurement: a process with Django that enqueues.

`python -m benchmarks.client one COUNT GAP_SECONDS | rates COUNT | commit COUNT | feed COUNT RATE`
"""

import io
import json
import sys
import time
from collections.abc import Callable

import django

INSERT = """
INSERT INTO jobqueue_job (task, args) VALUES (%s, %s) RETURNING id
"""


def one(count: int, gap: float) -> None:
    """Enqueue one by one, and mark the moment at which each commit has returned."""
    from benchmarks.marks import mark
    from benchmarks.tasks import note

    for number in range(count):
        note.enqueue(number)
        mark(number)
        time.sleep(gap)


def rates(count: int) -> None:
    """Print jobs per second: bare statements through Django's connection, and this app's calls."""
    ways: dict[str, tuple[Callable[[int], float | None], int]] = {
        "INSERT": (_insert, count),
        "enqueue": (_enqueue, count),
        "COPY": (_copy, 10 * count),
        "enqueue_many": (_enqueue_many, 10 * count),
    }
    best = dict.fromkeys(ways, 0.0)
    for _ in range(6):  # interleaved; the first is a warm-up
        for name, (call, size) in ways.items():
            start = time.perf_counter()
            took = call(size) or time.perf_counter() - start
            best[name] = max(best[name], size / took)
    print(json.dumps(best))


def _insert(count: int) -> None:
    from django.db import connection

    for number in range(count):
        with connection.cursor() as cursor:
            cursor.execute(INSERT, ["benchmarks.tasks.note", f"[{number}]"])
            cursor.fetchone()


def _enqueue(count: int) -> None:
    from benchmarks.tasks import note

    for number in range(count):
        note.enqueue(number)


def _copy(count: int) -> float:
    """The same rows as `enqueue_many` sends, but written beforehand. Returns what COPY took."""
    from django.db import connection

    from jobqueue.enqueueing.many import COPY

    with connection.cursor() as cursor:
        cursor.execute("SELECT COALESCE(max(id), 0) + 1000000, now() FROM jobqueue_job")
        first, now = cursor.fetchone()
        tail = f"benchmarks.tasks.note\t(number)\tdefault\tdefault\t0\t{{}}\tREADY\t{now}\t\\N\t5"
        lines = io.StringIO()
        for number in range(count):
            args = f"[{number}]"
            size = len(args) + len("{}")
            lines.write(f"{first + number}\t{args}\t{{}}\t{size}\t{tail}\t\\N\t\t{now}\n")
        text = lines.getvalue()
        start = time.perf_counter()
        with cursor.copy(COPY) as copy:
            copy.write(text)
        took = time.perf_counter() - start
        cursor.execute(
            "SELECT setval(pg_get_serial_sequence('jobqueue_job', 'id'), max(id)) FROM jobqueue_job"
        )
    return took


def _enqueue_many(count: int) -> None:
    import jobqueue
    from benchmarks.tasks import note

    jobqueue.enqueue_many([(note, [number]) for number in range(count)])


def commit(count: int) -> None:
    """Wait for the line that starts everybody, then enqueue in transactions of one job each."""
    from django.db import connection

    connection.ensure_connection()
    print("ready", flush=True)
    sys.stdin.readline()
    _enqueue(count)
    print("done", flush=True)


def feed(count: int, rate: float) -> None:
    """Enqueue naps of 10 ms at this rate."""
    from benchmarks.tasks import nap

    start = time.monotonic()
    for number in range(count):
        time.sleep(max(start + number / rate - time.monotonic(), 0))
        nap.enqueue(number, 0.01)


if __name__ == "__main__":
    django.setup()
    match sys.argv[1:]:
        case ["one", count, gap]:
            one(int(count), float(gap))
        case ["rates", count]:
            rates(int(count))
        case ["commit", count]:
            commit(int(count))
        case ["feed", count, rate]:
            feed(int(count), float(rate))
