"""The dashboard: all of the queue on one page that costs the database a few milliseconds."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from jobqueue.admin import charts
from jobqueue.admin.base import DeskAdmin, may
from jobqueue.admin.filters import TABS
from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.models import Dashboard, Schedule


@admin.register(Dashboard)
class DashboardAdmin(DeskAdmin):
    """Listed in the admin's index like a model, at `<admin>/jobqueue/dashboard/`."""

    permission = "jobqueue.view_job"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.dashboard, "changelist"),
            self.route("live/", self.live, "live"),
        ]

    def dashboard(self, request: HttpRequest) -> HttpResponse:
        """The page."""
        return self.render(request, "dashboard.html", self._figures(request))

    def live(self, request: HttpRequest) -> HttpResponse:
        """The page's live part, which refreshes itself."""
        return self.render(request, "dashboard_live.html", self._figures(request))

    def _figures(self, request: HttpRequest) -> dict[str, Any]:
        figures = stats.figures()
        now = figures.now
        context: dict[str, Any] = {
            "title": _("Dashboard"),
            "now": now,
            "tiles": [(name, label, figures.states[name]) for name, label in TABS.items() if name],
            "hour": charts.hour(stats.last_hour(now), now),
            "day": charts.day(stats.last_day(now), now),
            "running": stats.running(),
            "retrying": stats.retrying(),
            "dead": stats.dead(),
        }
        if may(request.user, "jobqueue.view_worker"):
            lease = stats.leader()
            context["leader"] = lease
            context["workers"] = stats.workers(now, lease)
        if may(request.user, "jobqueue.view_queue"):
            context["queues"] = stats.queues()
            context["may_pause"] = may(request.user, "jobqueue.pause_queue")
        if may(request.user, "jobqueue.view_schedule"):
            rows = Schedule.objects.using(settings().database).order_by("next_run_at", "name")
            context["schedules"] = rows[:20]
        return context
