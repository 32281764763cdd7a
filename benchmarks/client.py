"""The web side of a measurement: a process with Django that enqueues.

`python -m benchmarks.client one COUNT GAP_SECONDS`
"""

import sys
import time

import django


def one(count: int, gap: float) -> None:
    """Enqueue one by one, and mark the moment at which each commit has returned."""
    from benchmarks.marks import mark
    from benchmarks.tasks import note

    for number in range(count):
        note.enqueue(number)
        mark(number)
        time.sleep(gap)


if __name__ == "__main__":
    django.setup()
    match sys.argv[1:]:
        case ["one", count, gap]:
            one(int(count), float(gap))
