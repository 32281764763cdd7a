"""Queues: how deep they are, and whether they are paused."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import operations, queue_names
from jobqueue.admin.base import DeskAdmin, may
from jobqueue.admin.perform import Act, perform_act
from jobqueue.clock import database_time
from jobqueue.insight import stats
from jobqueue.models import Queue


def _pause(queue: Queue, by: User, reason: str) -> tuple[bool, str]:
    changed = operations.pause(queue.name, by=by, reason=reason).changed > 0
    text = _("Paused %(queue)s.") if changed else _("The queue %(queue)s was paused already.")
    return changed, text % {"queue": queue.name}


def _resume(queue: Queue, by: User, reason: str) -> tuple[bool, str]:
    changed = operations.resume(queue.name, by=by, reason=reason).changed > 0
    text = _("Resumed %(queue)s.") if changed else _("The queue %(queue)s was not paused.")
    return changed, text % {"queue": queue.name}


ACTS = {
    act.name: act
    for act in (
        Act(
            name="pause",
            permission="jobqueue.pause_queue",
            label=gettext_lazy("Pause"),
            question=gettext_lazy("No more jobs of this queue start; running ones continue."),
            run=_pause,
            dangerous=True,
        ),
        Act(
            name="resume",
            permission="jobqueue.pause_queue",
            label=gettext_lazy("Resume"),
            question=gettext_lazy("Jobs of this queue start again."),
            run=_resume,
        ),
    )
}


@admin.register(Queue)
class QueueAdmin(DeskAdmin):
    """Every known queue, with a row or without."""

    permission = "jobqueue.view_queue"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<str:pk>/", self.queue_page, "change"),
            self.route("<str:pk>/act/<slug:name>/", self.act, "act"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """All queues with depth and age."""
        context = {
            "title": _("Queues"),
            "queues": stats.queues(),
            "now": database_time(),
            "may_pause": may(request.user, "jobqueue.pause_queue"),
        }
        return self.render_live(request, "queue_list.html", "queue_live.html", context)

    def queue_page(self, request: HttpRequest, pk: str) -> HttpResponse:
        """Django's log links here; a queue's page is its list of ready jobs."""
        where = reverse("admin:jobqueue_job_changelist")
        return redirect(f"{where}?{urlencode({'state': 'READY', 'queue': pk})}")

    def act(self, request: HttpRequest, pk: str, name: str) -> HttpResponse:
        """Pause or resume."""
        if queue_names.unknown(pk):
            raise Http404(_("There is no queue of that name."))
        home = reverse("admin:jobqueue_queue_changelist")
        return perform_act(self, request, ACTS.get(name), Queue(name=pk), home)
