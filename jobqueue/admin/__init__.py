"""The operator's desk, inside Django's admin. Pages show; verbs act."""

from jobqueue.admin.jobs import JobAdmin
from jobqueue.admin.workers import LeaderLeaseAdmin, WorkerAdmin

__all__ = ["JobAdmin", "LeaderLeaseAdmin", "WorkerAdmin"]
