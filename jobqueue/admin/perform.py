"""From a button to an action: by POST, permitted, confirmed, logged, and exactly reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, cast
from uuid import uuid4

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, TooManyFieldsSent
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, QueryDict
from django.shortcuts import redirect
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from jobqueue import operations
from jobqueue.admin.actions import VERBS, JobVerb, ReasonForm, sentence
from jobqueue.admin.base import DeskAdmin, may, say
from jobqueue.admin.filters import BIGINT_MAX, Filters, UnreadableFilterError
from jobqueue.clock import database_time
from jobqueue.conf import settings
from jobqueue.models import Job
from jobqueue.operations import orders
from jobqueue.operations.admin_log import log_jobs
from jobqueue.redact import cover_text

# This many are counted; above that the planner's estimate is shown.
COUNTED_AT_MOST = 10_000
LONG = 500  # more than these take a while: the confirmation says how they are done
SAMPLE = 10
TICKED_AT_MOST = 1_000
NONCE = re.compile(r"[0-9a-f]{32}\Z")


class RefusedError(ValueError):
    """The form cannot be read: nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The jobs that a form names: by their ids, or all that match a filter."""

    ids: tuple[int, ...] = ()
    filters: Filters | None = None
    selection: operations.Selection | None = None
    estimate: int = 0
    sample: tuple[Job, ...] = ()

    def __bool__(self) -> bool:
        return self.estimate > 0

    @property
    def is_exact(self) -> bool:
        return self.selection is None or self.estimate <= COUNTED_AT_MOST

    @property
    def is_long(self) -> bool:
        return self.selection is not None and self.estimate > LONG


def permitted(request: HttpRequest, name: str) -> JobVerb:
    """Return the verb of this name. Raises PermissionDenied, also for an unknown one."""
    verb = VERBS.get(name)
    if verb is None or not may(request.user, verb.permission):
        raise PermissionDenied
    return verb


def choose(verb: JobVerb, form: QueryDict, moment: datetime) -> Choice:
    """Read which jobs are meant. Raises RefusedError: an unknown restriction is never ignored."""
    scopes = form.getlist("scope") or ["ticked"]
    if len(scopes) > 1 or scopes[0] not in ("ticked", "all"):
        raise RefusedError(gettext("The form does not say which jobs it means."))
    if scopes[0] == "all":
        return _all_that_match(verb, form, moment)
    if unreadable := [text for text in form.getlist("job") if not _is_id(text)]:
        raise RefusedError(
            gettext("“%(value)s” is not a job's id.") % {"value": unreadable[0][:50]}
        )
    ids = tuple(sorted({int(text) for text in form.getlist("job")}))
    if len(ids) > TICKED_AT_MOST:
        raise RefusedError(gettext("At most %(n)d jobs can be selected.") % {"n": TICKED_AT_MOST})
    jobs = Job.objects.using(settings().database).filter(pk__in=ids)
    sample = jobs.only("id", "task", "queue", "state").order_by("pk")[:SAMPLE]
    return Choice(ids=ids, estimate=len(ids), sample=tuple(sample))


def _all_that_match(verb: JobVerb, form: QueryDict, moment: datetime) -> Choice:
    if len(form.getlist("filter")) != 1:
        raise RefusedError(gettext("The form does not say by which filter."))
    if "confirmed" in form and "as_of" not in form:
        raise RefusedError(gettext("The form does not say as of when."))
    try:
        filters = Filters.read(QueryDict(form.get("filter", "")))
        selection = filters.selection(moment)
    except (UnreadableFilterError, TooManyFieldsSent) as error:
        raise RefusedError(str(error)) from error
    return Choice(
        filters=filters,
        selection=selection,
        estimate=orders.estimate(verb.act, selection, moment, COUNTED_AT_MOST),
        sample=tuple(orders.sample(verb.act, selection, moment, SAMPLE)),
    )


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BIGINT_MAX


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
        result = verb.act.run(jobs, data, user.get_username(), as_of)
        log_jobs(user.pk, result.ids, verb.name, data["reason"])
    say(request, messages.SUCCESS if result.changed else messages.WARNING, sentence(verb, result))
    return result


def as_of(form: QueryDict) -> datetime:
    """The time up to which the form's page knew the jobs; never a future one.

    Raises RefusedError for what is not a time.
    """
    now = database_time()
    if "as_of" not in form:
        return now
    try:
        moment = datetime.fromisoformat(form.get("as_of", ""))
        return min(moment.astimezone(UTC), now) if moment.tzinfo else _no_moment()
    except (ValueError, OverflowError):
        _no_moment()


def _no_moment() -> NoReturn:
    raise RefusedError(gettext("The form does not say as of when."))


def nonce(form: QueryDict) -> str:
    """The id of a filled form. Raises RefusedError."""
    text = form.get("nonce", "")
    if not NONCE.match(text):
        raise RefusedError(gettext("The form is incomplete. Open it again."))
    return text


def back(request: HttpRequest, otherwise: str) -> str:
    """Where the form wants to return to, if that is a page of this site."""
    wanted = request.POST.get("next", "")
    allowed = wanted.startswith("/") and url_has_allowed_host_and_scheme(
        wanted, {request.get_host()}, require_https=request.is_secure()
    )
    return wanted if allowed else otherwise


def new_nonce() -> str:
    """Identifies one filled form, so that sending it twice makes one order."""
    return uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One button. `run` takes the thing, the user and the reason; returns whether anything changed,
    and the sentence to show."""

    name: str
    permission: str
    label: Promise
    question: Promise
    run: Callable[[Any, User, str], tuple[bool, str]]
    dangerous: bool = False


def perform_act(
    desk: DeskAdmin, request: HttpRequest, act: Act | None, thing: Model, home: str
) -> HttpResponse:
    """Ask for confirmation, then do it and log it in one transaction. Never by GET."""
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
        changed, sentence = act.run(thing, user, reason)
        if changed:
            flag = DELETION if act.name == "delete" else CHANGE
            log_object(user, thing, flag, f"{act.name}: {reason}" if reason else act.name)
    say(request, messages.SUCCESS if changed else messages.WARNING, sentence)
    return redirect(home)


def log_object(user: User, thing: Model, flag: int, message: str) -> None:
    """One entry in Django's admin log."""
    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=get_content_type_for_model(type(thing)).pk,
        object_id=str(thing.pk),
        object_repr=cover_text(str(thing))[:200],
        action_flag=flag,
        change_message=cover_text(message),
    )
