"""Rows in every state, written as the worker would leave them."""

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from jobqueue.models import Attempt, Job, Worker
from jobqueue.states import FINAL, Outcome, State

TASK = "tests.web.tasks.send_receipt"


def job(state: State = State.READY, **fields: Any) -> Job:
    """One job that the constraints accept in this state."""
    now = timezone.now()
    fields.setdefault("task", TASK)
    fields.setdefault("signature", "(order, **options)")
    arguments = (fields.get("args", []), fields.get("kwargs", {}))
    fields.setdefault("args_bytes", sum(len(json.dumps(value)) for value in arguments))
    fields.setdefault("run_at", now + timedelta(hours=1) if state == State.SCHEDULED else now)
    fields.setdefault("enqueued_at", now)
    if state == State.RUNNING:
        fields = {
            "worker": uuid4(),
            "lease_token": uuid4(),
            "lease_expires_at": now + timedelta(seconds=30),
            "claimed_at": now,
            "started_at": now,
            **fields,
        }
    if state in FINAL:
        fields.setdefault("finished_at", now)
    return Job.objects.create(state=state, **fields)


def attempt(of: Job, number: int = 1, outcome: Outcome = Outcome.FAILED, **fields: Any) -> Attempt:
    """One concluded attempt."""
    start: datetime = timezone.now() - timedelta(minutes=10 - number)
    fields = {
        "token": uuid4(),
        "worker": uuid4(),
        "started_at": start,
        "finished_at": start + timedelta(seconds=3),
        **fields,
    }
    return Attempt.objects.create(job=of, number=number, outcome=outcome, **fields)


def worker(**fields: Any) -> Worker:
    """One living worker of the queue `default`."""
    fields = {
        "id": uuid4(),
        "name": "worker-1",
        "hostname": "web-1",
        "pid": 4711,
        "queues": ["default"],
        "concurrency": 10,
        "phase": "RUNNING",
        "wake": "notified",
        **fields,
    }
    return Worker.objects.create(**fields)
