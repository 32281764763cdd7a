"""Four operators at once, as a process: each enqueues short jobs and cancels and retries them.

Argument: how many jobs altogether.
"""

import random
import sys
import threading

import django

django.setup()

from django.db import connection  # noqa: E402

from jobqueue import enqueue_many, operations  # noqa: E402
from jobqueue.models import Job  # noqa: E402
from tests.processes import effects  # noqa: E402

BATCH = 20
TASKS = (effects.brief, effects.brief_plain)
mistakes: list[str] = []


def operate(count: int, pause: threading.Event) -> None:
    mine: list[int] = []
    for _ in range(count // BATCH):
        mine += enqueue_many(
            (
                random.choice(TASKS).using(backoff=random.choice([0, 0.05]), max_attempts=3),
                [random.uniform(0, 0.03), random.random() < 0.3],
            )
            for _ in range(BATCH)
        )
        for job in random.sample(mine[-3 * BATCH :], 15):
            pause.wait(random.uniform(0, 0.01))
            result = operations.cancel(job, by="operator")
            if result.changed + result.untouched != 1:
                mistakes.append(f"cancel of {job}: {result}")
        for job in random.sample(mine, 3):
            operations.retry(job, by="operator")
        if random.random() < 0.2:
            operations.cancel(Job.objects.filter(pk__in=mine[-10:]), by="operator")
    connection.close()


pause = threading.Event()
threads = [threading.Thread(target=operate, args=(int(sys.argv[1]) // 4, pause)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit("\n".join(mistakes) or None)
