"""Parts of a worker for tests in one process: claims that no database knows, and a whole worker."""

import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

from jobqueue import conf, operations
from jobqueue.conf import Settings
from jobqueue.store.claims import Claim
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.worker.inflight import InFlight, InFlightJobs
from jobqueue.worker.worker import Worker, WorkerOptions
from tests.children import wait_until

SHORT = Settings(
    heartbeat_seconds=0.2,
    lease_seconds=3.0,
    drain_seconds=2.0,
    cancel_seconds=0.3,
    poll_seconds=0.2,
    leader_lease_seconds=3.0,
)


def claim(**values) -> Claim:
    now = datetime.now(UTC).timestamp()
    facts = {
        "id": 1,
        "token": uuid4(),
        "task": "shop.receipt",
        "args": [],
        "kwargs": {},
        "signature": "",
        "queue": "default",
        "backend": "default",
        "priority": 0,
        "options": {},
        "attempts": 0,
        "failures": 0,
        "max_attempts": 5,
        "enqueued_at": now,
        "started_at": now,
        "claimed_at": now,
        "traceparent": "",
        "cancel_requested": False,
        "parked_seconds": None,
    }
    return Claim(**{**facts, **values})


def hold(registry: InFlightJobs, *, trusted_from: float, started=True, **values) -> InFlight:
    inflight = registry.add(claim(**values), trusted_from)
    inflight.started = started
    return inflight


class StoppingExecutor:
    """Records whom it was asked to stop; asks the handler as the real one does."""

    def __init__(self, now, cleanup_seconds=0.3):
        self.now, self.cleanup_seconds, self.stopped = now, cleanup_seconds, []

    def stop(self, inflight, why):
        self.stopped.append((inflight.claim.id, str(why)))
        inflight.request_stop(why, self.now(), self.cleanup_seconds)


@contextmanager
def working(settings=SHORT, **options):
    """A whole worker in a thread of this process, stopped at the end of the block."""
    worker = Worker(
        settings,
        ConnectionParameters(conf.connection_parameters),
        WorkerOptions(signals=False, **options),
        on_start=lambda: None,
        send_finished=operations.send_task_finished,
    )
    codes = []
    thread = threading.Thread(target=lambda: codes.append(worker.run()), name="worker-under-test")
    thread.start()
    try:
        wait_until(
            lambda: getattr(worker, "shutdown", None) and worker.shutdown.phase != "STARTING"
        )
        yield worker
    finally:
        with suppress(RuntimeError):  # its loop has just been closed
            worker.watchdog.loop.call_soon_threadsafe(worker.shutdown.request, "test")
        thread.join(30)
        worker.code = codes[0] if codes else None
    assert not thread.is_alive()


def settings(**values) -> Settings:
    return replace(SHORT, **values)
