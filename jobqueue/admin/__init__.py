"""The operator's pages inside Django's admin. Pages only read; actions change things."""

from jobqueue.admin.bulk_orders import BulkOrderAdmin
from jobqueue.admin.dashboard import DashboardAdmin
from jobqueue.admin.jobs import JobAdmin
from jobqueue.admin.queues import QueueAdmin
from jobqueue.admin.schedules import ScheduleAdmin
from jobqueue.admin.workers import LeaderLeaseAdmin, WorkerAdmin

__all__ = [
    "BulkOrderAdmin",
    "DashboardAdmin",
    "JobAdmin",
    "LeaderLeaseAdmin",
    "QueueAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]
