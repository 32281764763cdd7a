"""The tables. Web and worker meet only here."""

from jobqueue.models.attempt import Attempt
from jobqueue.models.event import JobEvent
from jobqueue.models.job import Job
from jobqueue.models.queue import Queue
from jobqueue.models.schedule import Schedule, ScheduleTick
from jobqueue.models.worker import LeaderLease, Worker

__all__ = [
    "Attempt",
    "Job",
    "JobEvent",
    "LeaderLease",
    "Queue",
    "Schedule",
    "ScheduleTick",
    "Worker",
]
