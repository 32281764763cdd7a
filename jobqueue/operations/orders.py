"""Bulk orders: stored, done in slices by key, cancelled and resumed.

A slice is one transaction under the order's row lock, which nobody waits for: it changes the jobs,
their events, the admin's log and the order's progress. Whoever asked must still have the
permission.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models.functions import Now

from jobqueue.conf import settings
from jobqueue.logs import get_logger
from jobqueue.models import BulkOrder, Job, JobEvent
from jobqueue.operations import jobs as operations
from jobqueue.operations.admin_log import log_jobs
from jobqueue.operations.selection import Selection
from jobqueue.operations.verbs import VERBS, BulkVerb

SLICE = 500
NAMED = 20  # jobs that the database refused, by their ids
INSUFFICIENT_PRIVILEGE = "42501"
CANNOT = "CANNOT"  # why a job was left alone: the database refused the change
ACTS = {BulkOrder.State.CANCELLED: "cancel order", BulkOrder.State.RUNNING: "resume order"}
log = get_logger()


class RightsUnreadableError(Exception):
    """This connection's role may not read users' permissions, or write the admin's log."""


def ask(
    *,
    verb: str,
    selection: Selection,
    moment: datetime,
    parameters: dict[str, Any],
    asker: Any,
    nonce: str,
    expected: int,
) -> tuple[BulkOrder, bool]:
    """Store an order, once per nonce; return it, and whether it is new.

    Raises PermissionError for another user's nonce.
    """
    alias, name = settings().database, operations.actor(asker)
    with transaction.atomic(using=alias):
        order, created = BulkOrder.objects.using(alias).get_or_create(
            nonce=nonce,
            defaults={
                "verb": VERBS[verb].name,
                "filter": selection.stored(),
                "moment": moment,
                "parameters": parameters,
                "asker_id": str(asker.pk),
                "asker": name,
                "expected": expected,
                "trail": [_entry("order", name, parameters.get("reason", ""))],
            },
        )
        if order.asker_id != str(asker.pk) or order.verb != verb:
            raise PermissionError("This form has been sent by somebody else.")
        if created:
            _note(order, "order", name, parameters.get("reason", ""))
    return order, created


def work_through(pk: int, seconds: float, stopping: Callable[[], bool]) -> None:
    """Do slices of one order until it has ended, the time is up, or another process works on it.

    Raises RightsUnreadableError, or what the database raises.
    """
    end = time.monotonic() + seconds
    while _slice_again(pk) and time.monotonic() < end and not stopping():
        pass


def work(seconds: float, stopping: Callable[[], bool]) -> bool:
    """Continue the open orders, one at a time; return whether there is more to do."""
    end, alias = time.monotonic() + seconds, settings().database
    running = BulkOrder.objects.using(alias).filter(state=BulkOrder.State.RUNNING)
    for pk in list(running.order_by("pk").values_list("pk", flat=True)[:100]):
        if time.monotonic() >= end or stopping():
            break
        work_through(pk, end - time.monotonic(), stopping)
    return running.exists()


def _slice_again(pk: int) -> bool:
    """Other transactions lock rows in any order, so a deadlock gets another try."""
    for _ in range(operations.TRIES - 1):
        try:
            return run_slice(pk)
        except OperationalError as error:
            state = getattr(error.__cause__, "sqlstate", None)
            if state not in (operations.DEADLOCK, operations.SERIALIZATION):
                raise
    return run_slice(pk)


def run_slice(pk: int) -> bool:
    """Do one slice; return whether another one may follow."""
    alias = settings().database
    try:
        with transaction.atomic(using=alias):
            rows = BulkOrder.objects.using(alias).select_for_update(skip_locked=True)
            order = rows.filter(pk=pk, state=BulkOrder.State.RUNNING).first()
            if order is None:
                return False
            try:
                verb, selection = VERBS[order.verb], Selection.read(order.filter)
                if why := refusal(order):
                    raise ValueError(why)
                ids = _next_ids(order, verb, selection)
                result = _act(order, verb, ids)
            except (KeyError, TypeError, ValueError) as error:
                _end(order, BulkOrder.State.REFUSED, str(error))
                return False
            log_jobs(order.asker_id, result.ids, verb.name, order.parameters.get("reason", ""))
            _advance(order, ids, result)
            return order.state == BulkOrder.State.RUNNING
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) == INSUFFICIENT_PRIVILEGE:
            raise RightsUnreadableError(str(error).strip()) from error
        raise


def refusal(order: BulkOrder) -> str:
    """Return why the asker may not do this now; empty if permitted."""
    users = get_user_model()._default_manager
    try:
        user = users.filter(pk=order.asker_id).first()
    except (ValueError, ValidationError):
        user = None
    if user is None:
        return f"{order.asker} is no user any more"
    if not user.is_active:
        return f"{order.asker} is not active any more"
    permission = VERBS[order.verb].permission
    if not cast(Any, user).has_perm(permission):
        return f"{order.asker} has no right {permission} any more"
    return ""


def estimate(verb: BulkVerb, selection: Selection, moment: datetime, exact: int) -> int:
    """How many jobs match: counted up to a limit, estimated by the planner beyond it."""
    few = len(_ids(verb, selection, moment, 0, exact + 1))
    if few <= exact:
        return few
    jobs = selection.queryset().filter(state__in=[str(state) for state in verb.states])
    plan = jobs.order_by().explain(format="json")
    return max(int(json.loads(plan)[0]["Plan"]["Plan Rows"]), few)


def sample(verb: BulkVerb, selection: Selection, moment: datetime, most: int) -> list[Job]:
    """Return the first jobs that match."""
    ids = _ids(verb, selection, moment, 0, most)
    jobs = Job.objects.using(settings().database).filter(pk__in=ids)
    return list(jobs.only("id", "task", "queue", "state").order_by("pk"))


def cancel(order: BulkOrder, *, by: Any, reason: str = "") -> bool:
    """Stop it after the current slice; return whether it was running."""
    return _turn(order, BulkOrder.State.RUNNING, BulkOrder.State.CANCELLED, by, reason)


def resume(order: BulkOrder, *, by: Any, reason: str = "") -> bool:
    """Continue under the name and permissions of whoever resumes it; return whether it did."""
    states = BulkOrder.State
    return _turn(order, states.CANCELLED, states.RUNNING, by, reason) or _turn(
        order, states.REFUSED, states.RUNNING, by, reason
    )


def _turn(order: BulkOrder, before: str, after: str, by: Any, reason: str) -> bool:
    alias, name = settings().database, operations.actor(by)
    with transaction.atomic(using=alias):
        rows = BulkOrder.objects.using(alias).select_for_update()
        found = rows.filter(pk=order.pk, state=before).first()
        if found is None:
            return False
        found.state, found.reason = after, reason
        found.finished_at = None
        if after == BulkOrder.State.RUNNING:
            found.asker_id, found.asker = str(by.pk), name
        else:
            found.finished_at = Now()
        kind = ACTS[BulkOrder.State(after)]
        found.trail = [*found.trail, _entry(kind, name, reason)]
        found.save()
        _note(found, kind, name, reason)
    return True


def _next_ids(order: BulkOrder, verb: BulkVerb, selection: Selection) -> list[int]:
    return _ids(verb, selection, order.moment, order.last_key, SLICE)


def _ids(
    verb: BulkVerb, selection: Selection, moment: datetime, after: int, most: int
) -> list[int]:
    """By key, state by state: each has an index of its own, however long the history is."""
    jobs = selection.queryset().filter(enqueued_at__lte=moment, pk__gt=after)
    if selection.state is not None or selection.retrying:
        jobs = jobs.filter(state__in=[str(state) for state in verb.states])
        return list(jobs.order_by("pk").values_list("pk", flat=True)[:most])
    found: list[int] = []
    for state in sorted(verb.states):
        of_state = jobs.filter(state=str(state)).order_by("pk")
        found += of_state.values_list("pk", flat=True)[:most]
    return sorted(found)[:most]


def _act(order: BulkOrder, verb: BulkVerb, ids: list[int]) -> operations.Result:
    alias, result = settings().database, operations.Result(verb=verb.name)
    if not ids:
        return result
    try:
        with transaction.atomic(using=alias):
            return verb.run(ids, order.parameters, order.asker, order.moment)
    except OperationalError:
        raise
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) == INSUFFICIENT_PRIVILEGE:
            raise
    for id in ids:  # one row that the database refuses does not hold up the others
        try:
            with transaction.atomic(using=alias):
                result += verb.run([id], order.parameters, order.asker, order.moment)
        except OperationalError:
            raise
        except DatabaseError as error:
            result += operations.Result(verb=verb.name, left={CANNOT: 1})
            log.warning("bulk_order_job_refused", order=order.pk, job=id, error=str(error).strip())
            if order.reason.count("#") < NAMED:
                order.reason = f"{order.reason} #{id}".strip()
    return result


def _advance(order: BulkOrder, ids: list[int], result: operations.Result) -> None:
    order.last_key = ids[-1] if ids else order.last_key
    order.changed += result.changed
    order.asked += result.asked
    order.left = dict(Counter(order.left) + Counter(result.left))
    order.updated_at = Now()
    if len(ids) < SLICE:
        _end(order, BulkOrder.State.DONE, order.reason)
    else:
        order.save()


def _end(order: BulkOrder, state: BulkOrder.State, reason: str) -> None:
    order.state, order.reason, order.finished_at = state, reason, Now()
    order.trail = [*order.trail, _entry(state.lower(), "", reason)]
    order.save()
    log.info(
        "bulk_order_ended",
        order=order.pk,
        verb=order.verb,
        state=str(state),
        changed=order.changed,
        by=order.asker,
        reason=reason,
    )


def _entry(what: str, by: str, reason: str) -> dict[str, str]:
    with connections[settings().database].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    return {"at": now.isoformat(), "what": what, "by": by, "reason": reason}


def _note(order: BulkOrder, kind: str, by: str, reason: str) -> None:
    note = f"order {order.pk}: {order.verb}" + (f": {reason}" if reason else "")
    JobEvent.objects.using(settings().database).create(kind=kind, actor=by, note=note)
