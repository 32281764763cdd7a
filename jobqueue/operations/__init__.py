"""What an operator may do to jobs and queues: for the admin, commands and projects."""

from jobqueue.operations.finished import send_task_finished
from jobqueue.operations.jobs import (
    ASKED,
    HELD,
    LATER,
    MISSING,
    NEWER,
    SAME,
    Jobs,
    Result,
    actor,
    cancel,
    delete,
    move,
    prune,
    reprioritise,
    retry,
    run_now,
)
from jobqueue.operations.queues import pause, resume
from jobqueue.operations.selection import Selection
from jobqueue.operations.verbs import BulkVerb

__all__ = [
    "ASKED",
    "HELD",
    "LATER",
    "MISSING",
    "NEWER",
    "SAME",
    "BulkVerb",
    "Jobs",
    "Result",
    "Selection",
    "actor",
    "cancel",
    "delete",
    "move",
    "pause",
    "prune",
    "reprioritise",
    "resume",
    "retry",
    "run_now",
    "send_task_finished",
]
