"""Examines settings, database and workers, and says what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from jobqueue import conf, queue_names
from jobqueue.checks import server_fault
from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.models import Job
from jobqueue.scheduling import operator_tasks
from jobqueue.states import IdleReason, State, Wake

IDLE_REMEDIES: dict[str, str] = {
    IdleReason.SIGNALS: "Receivers of Django's task signals, or the log handlers behind them, are "
    "slower than the jobs: see the stack in its log line `worker_idle`.",
    IdleReason.ANSWERS: "Claims whose answer was lost are looked for; it ends by itself.",
    IdleReason.OUTCOMES: "All slots wait for their outcomes to be written: look for locked rows.",
    IdleReason.OUTAGE: "The database does not answer its claims: see its log.",
    IdleReason.MAX_JOBS: "It leaves when its last jobs have ended; a supervisor then replaces it.",
}
# Also before its first beat and notification, while it reconnects, and where that was chosen.
HEARS = ("", Wake.NOTIFIED, Wake.STARTING, Wake.RECONNECTING, Wake.OFF)
WAKE_REMEDIES: dict[str, str] = {
    Wake.SILENT: "Give it a direct connection, not a transaction pooler's."
}
ERROR, WARNING, NOTE = "error", "warning", "note"
SKEW_SECONDS = 2.0
OLD_TRANSACTION_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, and the remedy."""

    level: str
    text: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.level}: {self.text}" + (f" {self.remedy}" if self.remedy else "")


def examine(grace: float | None = None) -> list[Finding]:
    """Return everything found. `grace`: seconds between the platform's TERM and its KILL."""
    found = list(_settings(grace))
    if any(finding.level == ERROR for finding in found):
        return found
    for examination in EXAMINATIONS:
        found += examination()
        if any(finding.level == ERROR for finding in found):
            break  # without its tables there is nothing more to examine
    return found


def _settings(grace: float | None) -> Iterator[Finding]:
    current, faults = conf.read()
    for fault in faults:
        if fault.code == "W001" and grace is not None:
            continue
        level = ERROR if fault.code.startswith("E") else WARNING
        yield Finding(level, f"{fault.key}: {fault.message}", fault.hint)
    if grace is not None and grace < current.exit_seconds:
        yield Finding(
            ERROR,
            f"The platform kills {grace:g} s after TERM, but a worker may need "
            f"{current.exit_seconds:g} s (DRAIN_SECONDS + CANCEL_SECONDS + 2).",
            "Lengthen the platform's grace, or shorten DRAIN_SECONDS.",
        )


def _database() -> Iterator[Finding]:
    if fault := server_fault(settings().database):
        yield Finding(ERROR, fault.message, fault.remedy)


def _tables() -> Iterator[Finding]:
    executor = MigrationExecutor(connections[settings().database])
    targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "jobqueue"]
    if pending := executor.migration_plan(targets):
        names = ", ".join(migration.name for migration, _ in pending)
        remedy = f"Run: manage.py migrate jobqueue --database {settings().database}"
        yield Finding(ERROR, f"Migrations have not run: {names}.", remedy)


SERVER = """
WITH alive AS (
    SELECT concurrency, supervisor FROM jobqueue_worker
    WHERE phase <> 'STOPPED' AND died_at IS NULL
      AND last_seen_at > clock_timestamp() - %(lease)s * interval '1 second'
)
SELECT clock_timestamp(),
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int,
    current_setting('autovacuum') = 'on',
    (SELECT EXTRACT(EPOCH FROM max(clock_timestamp() - xact_start))::double precision
     FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
    ARRAY(SELECT concurrency FROM alive),
    (SELECT count(DISTINCT supervisor) FROM alive WHERE supervisor <> '')
"""


def _server() -> Iterator[Finding]:
    now, allowed, vacuums, oldest, slots, supervisors = stats.row(
        SERVER, {"lease": settings().lease_seconds}
    )
    if abs(skew := (now - datetime.now(UTC)).total_seconds()) > SKEW_SECONDS:
        text = f"The database's clock and this machine's differ by {abs(skew):.1f} s."
        yield Finding(NOTE, text, "Leases do not mind; run_after and cron mean the database's.")
    if (needed := conf.fleet_connections(slots, supervisors)) > allowed:
        text = f"{len(slots)} workers may open {needed} connections, the server allows {allowed}."
        yield Finding(WARNING, text, "Raise max_connections, or lower CONCURRENCY.")
    if not vacuums:
        text = "autovacuum is off: the queue's tables will grow and slow down."
        yield Finding(WARNING, text, "Turn it on.")
    if (oldest or 0) > OLD_TRANSACTION_SECONDS:
        text = f"A transaction has been open for {oldest / 60:.0f} min; vacuum cannot clean."
        yield Finding(WARNING, text, "Find it in pg_stat_activity and end it.")


def _fleet() -> Iterator[Finding]:
    now, lease = stats.figures(limit=1).now, stats.leader()
    workers = stats.workers(now, lease)
    alive = [row for row in workers if row.alive]
    if not alive:
        yield Finding(WARNING, "No worker is running.", "Start one: manage.py runworker")
    for row in workers:
        if not row.alive:
            text = f"Worker {row.worker} has been silent for {row.silent_seconds:.0f} s."
            yield Finding(WARNING, text, "Its jobs are taken over when their leases lapse.")
        elif row.worker.idle_reason:
            reason = row.worker.idle_reason
            text = f"Worker {row.worker} claims nothing: {reason}."
            yield Finding(WARNING, text, IDLE_REMEDIES.get(reason, ""))
        elif row.worker.wake not in HEARS:
            text = f"Worker {row.worker} hears no notifications ({row.worker.wake})."
            yield Finding(NOTE, text, WAKE_REMEDIES.get(row.worker.wake, "Its log says more."))
        if row.alive and row.worker.signals_dropped:
            text = f"Worker {row.worker} has dropped {row.worker.signals_dropped} task signals."
            yield Finding(WARNING, text, "Receivers hang: see `signal_receiver_stuck` in its log.")
    if alive and (lease is None or lease.expires_at is None or lease.expires_at < now):
        text = "There is no leader: no job is promoted precisely, reclaimed or pruned."
        yield Finding(WARNING, text, "Run at least one worker without --no-leader.")


def _queues() -> Iterator[Finding]:
    for queue in stats.queues(limit=1_000):
        waits = queue.ready.value
        if waits and not queue.workers:
            text = f"{waits} jobs wait in {queue.name!r}, which no running worker serves."
            remedy = f"Start one: manage.py runworker --queues {queue.name}"
            if queue_names.fault(queue.name):
                remedy = "Add it to QUEUES of TASKS, or move its jobs to another queue."
            yield Finding(WARNING, text, remedy)
        if waits and queue.paused_at:
            by = f" by {queue.paused_by}" if queue.paused_by else ""
            text = f"{queue.name!r} is paused{by} since {queue.paused_at:%Y-%m-%d %H:%M} UTC."
            yield Finding(NOTE, text, f"Resume it: manage.py jobqueue resume {queue.name}")


def _parked() -> Iterator[Finding]:
    parked: Any = Job.objects.using(settings().database).filter(
        state=State.SCHEDULED, parked_at__isnull=False
    )
    paths = sorted(set(parked.order_by("parked_at").values_list("task", flat=True)[:200]))
    for path in paths:
        text = f"Jobs of {path} are parked: no worker's code knows that task."
        yield Finding(WARNING, text, "Deploy the code that has it, or cancel them.")


def _newer() -> Iterator[Finding]:
    waiting, needs = stats.newer()
    if not waiting.value:
        return
    workers = stats.workers(stats.figures(limit=1).now, None, limit=500)
    if needs > max((row.worker.understands for row in workers if row.alive), default=0):
        text = f"{waiting.value} jobs need newer code than any running worker has."
        yield Finding(WARNING, text, "Deploy it: what runs leaves them alone.")


def _operator_tasks() -> Iterator[Finding]:
    if names := operator_tasks.unknown_names():
        text = f"JOBQUEUE['OPERATOR_TASKS'] names what is no task: {', '.join(names)}."
        remedy = "Write dotted paths of tasks in the `tasks` modules of installed apps."
        yield Finding(WARNING, text, remedy)


EXAMINATIONS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _database,
    _tables,
    _server,
    _fleet,
    _queues,
    _parked,
    _newer,
    _operator_tasks,
)
