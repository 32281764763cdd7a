"""Workers and the leader's lease: read-only."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from jobqueue.admin import labels
from jobqueue.admin.base import DeskAdmin
from jobqueue.clock import database_time
from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.models import LeaderLease, Worker
from jobqueue.redact import cover
from jobqueue.states import Phase, State

SHOWN = 100
# What a stop report counts, in the order of the page.
COUNTS = ("completed", "interrupted", "returned", "unrecorded")
# PostgreSQL does not keep the order of an object's keys.
ORDER = {name: place for place, name in enumerate(labels.REPORT)}


@admin.register(Worker)
class WorkerAdmin(DeskAdmin):
    """Running workers, and how recent ones ended."""

    permission = "jobqueue.view_worker"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<uuid:pk>/", self.worker_page, "change"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The running ones first, then those that stopped recently."""
        now, lease = database_time(), stats.leader()
        gone = Worker.objects.using(settings().database).order_by("-last_seen_at")
        stopped = [_stopped(w) for w in gone.filter(phase=Phase.STOPPED)[:SHOWN]]
        lost = [_stopped(w) for w in gone.exclude(died_at=None)[:SHOWN]]
        context = {
            "title": _("Workers"),
            "now": now,
            "workers": stats.workers(now, lease, limit=SHOWN),
            "gone": sorted(stopped + lost, key=lambda row: row["seen"], reverse=True)[:SHOWN],
            "leader": lease,
            "counts": COUNTS,
        }
        return self.render_live(request, "worker_list.html", "worker_list_live.html", context)

    def worker_page(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """One process, its running jobs, and its stop report."""
        worker = Worker.objects.using(settings().database).filter(pk=pk).first()
        if worker is None:
            raise Http404(_("There is no such worker. Its row was removed."))
        running = stats.jobs().filter(state=State.RUNNING, worker=pk).order_by("claimed_at")
        report = _report(worker)
        context = {
            "title": str(worker),
            "now": database_time(),
            "worker": worker,
            "running": list(running[:SHOWN]),
            "report": sorted(report.items(), key=lambda item: ORDER.get(item[0], len(ORDER))),
        }
        return self.render_live(request, "worker.html", "worker_live.html", context)


def _report(worker: Worker) -> dict[str, Any]:
    """What it wrote at its stop: also why, which may be an error's text."""
    report: dict[str, Any] = cover(worker.stop_report) if worker.stop_report else {}
    return report if isinstance(report, dict) else {}


def _stopped(worker: Worker) -> dict[str, Any]:
    report = _report(worker)
    return {
        "worker": worker,
        "seen": worker.last_seen_at,
        "counts": [report.get(name, "") for name in COUNTS],
        "reason": report.get("reason", ""),
        "lost": worker.died_at is not None,
        "duration": report.get("duration_seconds"),
    }


@admin.register(LeaderLease)
class LeaderLeaseAdmin(DeskAdmin):
    """Who does the housekeeping."""

    permission = "jobqueue.view_leaderlease"

    def get_urls(self) -> list[URLPattern]:
        return [self.route("", self.list_page, "changelist")]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The leases with their holders."""
        alias = settings().database
        leases = list(LeaderLease.objects.using(alias).order_by("name")[:SHOWN])
        holders = Worker.objects.using(alias).in_bulk([x.holder for x in leases if x.holder])
        context = {
            "title": _("Leader leases"),
            "now": database_time(),
            "leases": [(lease, holders.get(lease.holder)) for lease in leases],
        }
        return self.render(request, "lease_list.html", context)
