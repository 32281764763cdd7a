"""From a button to an act: by POST only, confirmed, permitted, logged, and answered honestly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import uuid4

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, QueryDict
from django.shortcuts import redirect
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme

from jobqueue import operations
from jobqueue.admin import job_changelist
from jobqueue.admin.actions import VERBS, JobVerb, ReasonForm, sentence
from jobqueue.admin.base import DeskAdmin, may
from jobqueue.admin.filters import BIGINT_MAX, Filters
from jobqueue.conf import settings
from jobqueue.models import Job

# All that match are changed at once up to here; more of them by a job of its own.
AT_ONCE = 500
SAMPLE = 10
TICKED_AT_MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The jobs that a form names: by their ids, or all that match a filter."""

    ids: tuple[int, ...] = ()
    filters: Filters | None = None
    complete: bool = True  # whether `ids` is all of them
    estimate: int = 0
    sample: tuple[Job, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ids)


def permitted(request: HttpRequest, name: str) -> JobVerb:
    """Return the verb of this name. Raises PermissionDenied, also for an unknown one."""
    verb = VERBS.get(name)
    if verb is None or not may(request.user, verb.permission):
        raise PermissionDenied
    return verb


def choose(verb: JobVerb, form: QueryDict) -> Choice:
    """Read which jobs are meant."""
    if form.get("scope") != "all":
        ids = tuple(sorted({int(text) for text in form.getlist("job") if _is_id(text)}))
        ids = ids[:TICKED_AT_MOST]
        jobs = Job.objects.using(settings().database).filter(pk__in=ids)
        sample = jobs.only("id", "task", "queue", "state").order_by("pk")[:SAMPLE]
        return Choice(ids=ids, estimate=len(ids), sample=tuple(sample))
    filters = Filters.read(QueryDict(form.get("filter", ""))).having(text="")
    page = job_changelist.fetch(filters, size=AT_ONCE)
    complete = not (page.next or page.search_on or page.truncated)
    return Choice(
        ids=tuple(job.pk for job in page.jobs),
        filters=filters,
        complete=complete,
        estimate=len(page.jobs) if complete else max(estimate(filters.queryset()), len(page.jobs)),
        sample=tuple(page.jobs[:SAMPLE]),
    )


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BIGINT_MAX


def estimate(jobs: QuerySet[Job]) -> int:
    """What the planner thinks; nobody counts."""
    plan = json.loads(jobs.order_by().explain(format="json"))
    return int(plan[0]["Plan"]["Plan Rows"])


def act(
    request: HttpRequest,
    verb: JobVerb,
    jobs: operations.Jobs,
    data: dict[str, Any],
    as_of: datetime | None,
) -> operations.Result:
    """Do it and log it, in one transaction."""
    user = cast(User, request.user)
    with transaction.atomic(using=settings().database):
        result = verb.run(jobs, data, user.get_username(), as_of)
        log_jobs(user, result.ids, verb, data["reason"])
    messages.add_message(
        request,
        messages.SUCCESS if result.changed else messages.WARNING,
        sentence(verb, result),
    )
    return result


def log_jobs(user: AbstractBaseUser, ids: Iterable[int], verb: JobVerb, reason: str) -> None:
    """One entry of Django's admin log for each job that changed."""
    content_type = get_content_type_for_model(Job)
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type_id=content_type.pk,
            object_id=str(id),
            object_repr=f"#{id}",
            action_flag=DELETION if verb.name == "delete" else CHANGE,
            change_message=f"{verb.name}: {reason}" if reason else verb.name,
        )
        for id in ids
    )


def as_of(form: QueryDict) -> datetime | None:
    """The moment up to which the page that holds this form knew the jobs."""
    try:
        moment = datetime.fromisoformat(form.get("as_of", ""))
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def back(request: HttpRequest, otherwise: str) -> str:
    """Where the form wants to return to, if that is a page of this site."""
    wanted = request.POST.get("next", "")
    allowed = wanted.startswith("/") and url_has_allowed_host_and_scheme(
        wanted, {request.get_host()}, require_https=request.is_secure()
    )
    return wanted if allowed else otherwise


def new_nonce() -> str:
    """Marks one filled form, so that sending it twice starts one job."""
    return uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One button. `run` takes the thing, the actor's name and the reason; returns whether anything
    changed, and the sentence to show."""

    name: str
    permission: str
    label: Promise
    question: Promise
    run: Callable[[Any, str, str], tuple[bool, str]]
    dangerous: bool = False


def perform_act(
    desk: DeskAdmin, request: HttpRequest, act: Act | None, thing: Model, home: str
) -> HttpResponse:
    """Ask, and when confirmed, do it and log it in one transaction. Never by GET."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if act is None or not may(request.user, act.permission):
        raise PermissionDenied
    home = back(request, home)
    confirmed = "confirmed" in request.POST
    form = ReasonForm(request.POST if confirmed else None)
    if not confirmed or not form.is_valid():
        context = {"title": act.label, "act": act, "thing": thing, "form": form, "next": home}
        return desk.render(request, "confirm_act.html", context)
    user, reason = cast(User, request.user), form.cleaned_data["reason"]
    with transaction.atomic(using=settings().database):
        changed, sentence = act.run(thing, user.get_username(), reason)
        if changed:
            flag = DELETION if act.name == "delete" else CHANGE
            log_object(user, thing, flag, f"{act.name}: {reason}" if reason else act.name)
    messages.add_message(request, messages.SUCCESS if changed else messages.WARNING, sentence)
    return redirect(home)


def log_object(user: User, thing: Model, flag: int, message: str) -> None:
    """One entry in Django's admin log."""
    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=get_content_type_for_model(type(thing)).pk,
        object_id=str(thing.pk),
        object_repr=str(thing)[:200],
        action_flag=flag,
        change_message=message,
    )
