"""The tables. Web and worker meet only here."""

from jobqueue.models.attempt import Attempt
from jobqueue.models.bulk_order import BulkOrder
from jobqueue.models.dashboard import Dashboard
from jobqueue.models.event import JobEvent
from jobqueue.models.job import Job
from jobqueue.models.minute import Minute
from jobqueue.models.queue import Queue
from jobqueue.models.schedule import Schedule, ScheduleTick
from jobqueue.models.worker import LeaderLease, Worker

__all__ = [
    "Attempt",
    "BulkOrder",
    "Dashboard",
    "Job",
    "JobEvent",
    "LeaderLease",
    "Minute",
    "Queue",
    "Schedule",
    "ScheduleTick",
    "Worker",
]
