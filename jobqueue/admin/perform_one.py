"""Acts on one queue or schedule: the same way from a button to an effect as for jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.utils.functional import Promise

from jobqueue.admin import perform
from jobqueue.admin.actions import ReasonForm
from jobqueue.admin.base import DeskAdmin, may
from jobqueue.conf import settings


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
    home = perform.back(request, home)
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
            log(user, thing, flag, f"{act.name}: {reason}" if reason else act.name)
    messages.add_message(request, messages.SUCCESS if changed else messages.WARNING, sentence)
    return redirect(home)


def log(user: User, thing: Model, flag: int, message: str) -> None:
    """One entry in Django's admin log."""
    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=get_content_type_for_model(type(thing)).pk,
        object_id=str(thing.pk),
        object_repr=str(thing)[:200],
        action_flag=flag,
        change_message=message,
    )
