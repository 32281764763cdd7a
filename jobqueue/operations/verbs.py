"""The verbs on many jobs: the permission that each needs, and the states that it applies to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobqueue.operations import jobs as operations
from jobqueue.states import FINAL, WAITING, State

# The jobs, the form's values, the actor, and the moment up to which the jobs were known.
Run = Callable[
    [operations.Jobs, Mapping[str, Any], str, datetime | None],
    operations.Result,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkVerb:
    """One thing that can be done to jobs; its name is used in URLs and in orders."""

    name: str
    permission: str
    states: frozenset[State]
    run: Run


VERBS: Mapping[str, BulkVerb] = {
    verb.name: verb
    for verb in (
        BulkVerb(
            name="cancel",
            permission="jobqueue.cancel_job",
            states=WAITING | {State.RUNNING},
            run=lambda jobs, data, by, as_of: operations.cancel(jobs, by=by, reason=data["reason"]),
        ),
        BulkVerb(
            name="retry",
            permission="jobqueue.retry_job",
            states=frozenset({State.DEAD, State.CANCELLED}),
            run=lambda jobs, data, by, as_of: operations.retry(
                jobs, by=by, reason=data["reason"], as_of=as_of
            ),
        ),
        BulkVerb(
            name="run-now",
            permission="jobqueue.run_job",
            states=frozenset({State.SCHEDULED}),
            run=lambda jobs, data, by, as_of: operations.run_now(
                jobs, by=by, reason=data["reason"]
            ),
        ),
        BulkVerb(
            name="priority",
            permission="jobqueue.change_job",
            states=WAITING,
            run=lambda jobs, data, by, as_of: operations.reprioritise(
                jobs, data["priority"], by=by, reason=data["reason"]
            ),
        ),
        BulkVerb(
            name="move",
            permission="jobqueue.change_job",
            states=WAITING,
            run=lambda jobs, data, by, as_of: operations.move(
                jobs, data["queue"], by=by, reason=data["reason"]
            ),
        ),
        BulkVerb(
            name="delete",
            permission="jobqueue.delete_job",
            states=FINAL,
            run=lambda jobs, data, by, as_of: operations.delete(jobs, by=by, reason=data["reason"]),
        ),
    )
}
