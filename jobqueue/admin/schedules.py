"""Schedules: when they tick next, who fired the last ones, and their switch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import cron, redact, schedule_acts
from jobqueue.admin import acting
from jobqueue.admin.acts import Act, perform
from jobqueue.admin.desk import DeskAdmin, may
from jobqueue.conf import settings
from jobqueue.exceptions import JobQueueError
from jobqueue.models import Schedule
from jobqueue.tasks import UnknownTask

SHOWN = 200
PREVIEWED = 10
LAST_TICKS = 20


def _enable(schedule: Schedule, by: str, reason: str) -> tuple[bool, str]:
    changed = schedule_acts.enable(schedule, by=by, reason=reason)
    text = _("Enabled %(name)s.") if changed else _("The schedule %(name)s was enabled already.")
    return changed, text % {"name": schedule.name}


def _disable(schedule: Schedule, by: str, reason: str) -> tuple[bool, str]:
    changed = schedule_acts.disable(schedule, by=by, reason=reason)
    text = _("Disabled %(name)s.") if changed else _("The schedule %(name)s was disabled already.")
    return changed, text % {"name": schedule.name}


def _run(schedule: Schedule, by: str, reason: str) -> tuple[bool, str]:
    try:
        job = schedule_acts.run(schedule, by=by, reason=reason)
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
            question=gettext_lazy("It ticks again, from its next fitting time on."),
            run=_enable,
        ),
        Act(
            name="disable",
            permission="jobqueue.change_schedule",
            label=gettext_lazy("Disable"),
            question=gettext_lazy("It ticks no more until somebody enables it."),
            run=_disable,
            dangerous=True,
        ),
        Act(
            name="run",
            permission="jobqueue.run_schedule",
            label=gettext_lazy("Run now"),
            question=gettext_lazy("Its job is enqueued now, beside its ticks."),
            run=_run,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Tick:
    """A coming tick; `wall` is the time in the schedule's own zone."""

    at: datetime
    wall: str
    clock_changed: bool


def preview(schedule: Schedule, now: datetime) -> tuple[list[Tick], str]:
    """Return the next ticks with changes of the clocks marked, or why there are none."""
    try:
        zone = cron.zone(schedule.timezone)
        coming = list(islice(cron.ticks(schedule.cron, schedule.timezone, now), PREVIEWED))
    except cron.CronError as error:
        return [], str(error)
    ticks, offset = [], now.astimezone(zone).utcoffset()
    for tick in coming:
        local = tick.astimezone(zone)
        wall = f"{local:%a %Y-%m-%d %H:%M %Z}"
        ticks.append(Tick(tick, wall, local.utcoffset() != offset))
        offset = local.utcoffset()
    return ticks, ""


@admin.register(Schedule)
class ScheduleAdmin(DeskAdmin):
    """What recurs."""

    permission = "jobqueue.view_schedule"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<int:pk>/", self.schedule_page, "change"),
            self.route("<int:pk>/act/<slug:name>/", self.act, "act"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """All schedules with their next and last run."""
        rows = Schedule.objects.using(settings().database).order_by("name")
        context = {"title": _("Schedules"), "now": acting.clock(), "schedules": rows[:SHOWN]}
        return self.render(request, "schedule_list.html", context)

    def schedule_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One schedule: its next ten ticks, and its last ones."""
        schedule, now = self._get(pk), acting.clock()
        ticks, fault = preview(schedule, now)
        args, fault_free = redact.redact([schedule.args, schedule.kwargs]), not fault
        wanted = {"run", "disable" if schedule.enabled else "enable"}
        context = {
            "title": schedule.name,
            "schedule": schedule,
            "now": now,
            "ticks": ticks if schedule.enabled and fault_free else [],
            "fault": fault,
            "last": list(schedule.ticks.order_by("-tick_at")[:LAST_TICKS]),
            "args": redact.pretty(args[0])[0],
            "kwargs": redact.pretty(args[1])[0],
            "acts": [
                act
                for act in ACTS.values()
                if act.name in wanted and may(request.user, act.permission)
            ],
        }
        return self.render(request, "schedule.html", context)

    def act(self, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        """Enable, disable, or run now."""
        home = reverse("admin:jobqueue_schedule_change", args=[pk])
        return perform(self, request, ACTS.get(name), self._get(pk), home)

    def _get(self, pk: int) -> Schedule:
        found = None
        if pk < 2**63:
            found = Schedule.objects.using(settings().database).filter(pk=pk).first()
        if found is None:
            raise Http404(_("There is no such schedule."))
        return found
