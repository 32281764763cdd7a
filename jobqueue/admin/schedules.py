"""Schedules: their next ticks, who fired the last ones, and whether they are enabled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import cast

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION
from django.contrib.admin.models import CHANGE as CHANGED
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.dateformat import format as date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import redact
from jobqueue.admin.base import DeskAdmin, may, say
from jobqueue.admin.perform import Act, log_object, perform_act
from jobqueue.admin.schedule_form import ScheduleForm, covered
from jobqueue.clock import database_time
from jobqueue.conf import settings
from jobqueue.exceptions import JobQueueError
from jobqueue.models import Schedule
from jobqueue.operations import schedules
from jobqueue.scheduling import cron, operator_tasks
from jobqueue.tasks import UnknownTask

SHOWN = 200
PREVIEWED = 10
LAST_TICKS = 20
ADD, CHANGE = "jobqueue.add_schedule", "jobqueue.change_schedule"


def _enable(schedule: Schedule, by: User, reason: str) -> tuple[bool, str]:
    if refused := _refusal(schedule):
        return False, refused
    changed = schedules.enable(schedule, by=by, reason=reason)
    text = _("Enabled %(name)s.") if changed else _("The schedule %(name)s was enabled already.")
    return changed, text % {"name": schedule.name}


def _refusal(schedule: Schedule) -> str:
    """Why nobody may let this one run; the code's own declarations are the project's choice."""
    if schedule.origin == Schedule.Origin.CODE:
        return ""
    try:
        operator_tasks.check(schedule.task)
    except operator_tasks.TaskNotOffered:
        return _(
            "The project does not let operators schedule %(task)s (setting OPERATOR_TASKS)."
        ) % {"task": schedule.task}
    return ""


def _disable(schedule: Schedule, by: User, reason: str) -> tuple[bool, str]:
    changed = schedules.disable(schedule, by=by, reason=reason)
    text = _("Disabled %(name)s.") if changed else _("The schedule %(name)s was disabled already.")
    return changed, text % {"name": schedule.name}


def _delete(schedule: Schedule, by: User, reason: str) -> tuple[bool, str]:
    deleted = schedules.delete(schedule, by=by, reason=reason)
    text = (
        _("Deleted %(name)s.") if deleted else _("The schedule %(name)s had already been deleted.")
    )
    return deleted, text % {"name": schedule.name}


def _run(schedule: Schedule, by: User, reason: str) -> tuple[bool, str]:
    if refused := _refusal(schedule):
        return False, refused
    try:
        job = schedules.run(schedule, by=by, reason=reason)
    except (UnknownTask, JobQueueError, TypeError, ValueError) as error:
        return False, _("It cannot run: %(error)s") % {"error": error}
    return True, _("Enqueued as job %(id)s.") % {"id": job}


ACTS = {
    act.name: act
    for act in (
        Act(
            name="enable",
            permission="jobqueue.change_schedule",
            label=gettext_lazy("Enable"),
            question=gettext_lazy("It fires again, from its next time on."),
            run=_enable,
        ),
        Act(
            name="disable",
            permission="jobqueue.change_schedule",
            label=gettext_lazy("Disable"),
            question=gettext_lazy("It will not fire until it is enabled."),
            run=_disable,
            dangerous=True,
        ),
        Act(
            name="run",
            permission="jobqueue.run_schedule",
            label=gettext_lazy("Run now"),
            question=gettext_lazy("One job is enqueued now, in addition to the scheduled ones."),
            run=_run,
        ),
        Act(
            name="delete",
            permission="jobqueue.delete_schedule",
            label=gettext_lazy("Delete"),
            question=gettext_lazy(
                "It will not fire any more, and its recent ticks are deleted. A schedule that is "
                "declared in code comes back when a worker starts."
            ),
            run=_delete,
            dangerous=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Tick:
    """A future tick; `wall` is the time in the schedule's own zone."""

    at: datetime
    wall: str
    clock_changed: bool


def preview(schedule: Schedule, now: datetime) -> tuple[list[Tick], str]:
    """Return the next ticks, with clock changes marked, or why there are none."""
    try:
        zone = cron.zone(schedule.timezone)
        coming = list(islice(cron.ticks(schedule.cron, schedule.timezone, now), PREVIEWED))
    except cron.CronError as error:
        return [], str(error)
    ticks, offset = [], now.astimezone(zone).utcoffset()
    for tick in coming:
        local = tick.astimezone(zone)
        wall = date_format(local, "D Y-m-d H:i T")
        ticks.append(Tick(tick, wall, local.utcoffset() != offset))
        offset = local.utcoffset()
    return ticks, ""


@admin.register(Schedule)
class ScheduleAdmin(DeskAdmin):
    """Recurring jobs."""

    permission = "jobqueue.view_schedule"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.list_page, "changelist"),
            self.route("new/", self.new_page, "new"),
            self.route("<int:pk>/", self.schedule_page, "change"),
            self.route("<int:pk>/edit/", self.edit_page, "edit"),
            self.route("<int:pk>/act/<slug:name>/", self.act, "act"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """All schedules with their next and last run."""
        rows = Schedule.objects.using(settings().database).order_by("name")
        context = {
            "title": _("Schedules"),
            "now": database_time(),
            "schedules": rows[:SHOWN],
            "may_add": may(request.user, ADD),
        }
        return self.render(request, "schedule_list.html", context)

    def schedule_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One schedule: its next ten ticks, and its last ones."""
        schedule, now = self._get(pk), database_time()
        ticks, fault = preview(schedule, now)
        args = covered(schedule)
        wanted = {"run", "delete", "disable" if schedule.enabled else "enable"}
        context = {
            "title": schedule.name,
            "schedule": schedule,
            "now": now,
            "ticks": ticks if schedule.enabled and not fault else [],
            "fault": fault,
            "refused": _refusal(schedule),
            "last": list(schedule.ticks.order_by("-tick_at")[:LAST_TICKS]),
            "args": redact.pretty(args[0])[0],
            "kwargs": redact.pretty(args[1])[0],
            "may_edit": schedule.origin == Schedule.Origin.ADMIN and may(request.user, CHANGE),
            "acts": [
                act
                for act in ACTS.values()
                if act.name in wanted and may(request.user, act.permission)
            ],
        }
        return self.render(request, "schedule.html", context)

    def new_page(self, request: HttpRequest) -> HttpResponse:
        """Create one."""
        if not may(request.user, ADD):
            raise PermissionDenied
        return self._form(request, None, _("New schedule"))

    def edit_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Edit one that an operator made; those declared in code are changed there."""
        schedule = self._get(pk)
        if not may(request.user, CHANGE) or schedule.origin != Schedule.Origin.ADMIN:
            raise PermissionDenied
        return self._form(request, schedule, str(schedule))

    def _form(self, request: HttpRequest, schedule: Schedule | None, title: str) -> HttpResponse:
        form = ScheduleForm(request.POST or None, instance=schedule)
        if request.method != "POST" or not form.is_valid():
            context = {"title": title, "form": form, "schedule": schedule}
            return self.render(request, "schedule_form.html", context)
        user, changed = cast(User, request.user), form.changed_data
        saved = form.save(commit=False)
        with transaction.atomic(using=settings().database):
            if changed:
                schedules.save(saved, changed, by=user)
                log_object(
                    user, saved, ADDITION if schedule is None else CHANGED, ", ".join(changed)
                )
        say(request, messages.SUCCESS, _("Saved %(name)s.") % {"name": saved.name})
        return redirect("admin:jobqueue_schedule_change", saved.pk)

    def act(self, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        """Enable, disable, run now, or delete."""
        home = reverse("admin:jobqueue_schedule_change", args=[pk])
        if name == "delete":
            home = reverse("admin:jobqueue_schedule_changelist")
        return perform_act(self, request, ACTS.get(name), self._get(pk), home)

    def _get(self, pk: int) -> Schedule:
        found = None
        if pk < 2**63:
            found = Schedule.objects.using(settings().database).filter(pk=pk).first()
        if found is None:
            raise Http404(_("There is no such schedule."))
        return found
