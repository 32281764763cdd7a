"""What one worker process was started with, and how it identifies itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from uuid import uuid4

import jobqueue
from jobqueue.conf import Settings
from jobqueue.store.workers import Identity
from jobqueue.worker.process import liveness
from jobqueue.worker.process.recycle import Recycling
from jobqueue.worker.process.supervisor_link import SupervisorLink


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the command line asks of this worker."""

    queues: Mapping[str, int] = field(default_factory=lambda: {"default": 1})
    name: str = ""
    lead: bool = True
    signals: bool = True  # whether the process's signals are this worker's
    until_idle: bool = False
    max_runtime: float | None = None
    recycling: Recycling = field(default_factory=Recycling)
    parent: SupervisorLink | None = None


def identity(settings: Settings, options: WorkerOptions) -> Identity:
    """Return a new identity, so that no process owns what its predecessor held."""
    hostname = socket.gethostname()
    return Identity(
        # A supervisor knows its child by it, whatever becomes of the pid.
        id=options.parent.worker if options.parent else uuid4(),
        name=options.name or f"{hostname}:{os.getpid()}",
        hostname=hostname,
        supervisor=options.parent.id if options.parent else "",
        version=jobqueue.__version__,
        queues=list(options.queues),
        concurrency=settings.concurrency,
        may_lead=options.lead,
        **asdict(liveness.identity()),
    )
