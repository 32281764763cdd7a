"""Bulk orders: their list, and one order's page, which continues it while it is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import operations
from jobqueue.admin import perform
from jobqueue.admin.actions import VERBS, JobVerb, sentence
from jobqueue.admin.base import DeskAdmin, is_fragment, may, say
from jobqueue.admin.perform import Act
from jobqueue.clock import database_time
from jobqueue.conf import settings
from jobqueue.insight import stats
from jobqueue.models import BulkOrder
from jobqueue.operations import orders

AT_ONCE_SECONDS = 2.0  # how long the confirming request works, and each refresh of the page
SHOWN = 100
BIGINT_MAX = 2**63 - 1


def _cancel(order: BulkOrder, by: User, reason: str) -> tuple[bool, str]:
    changed = orders.cancel(order, by=by, reason=reason)
    text = _("Cancelled: no more jobs are changed.") if changed else _("It was not running.")
    return changed, text


def _resume(order: BulkOrder, by: User, reason: str) -> tuple[bool, str]:
    changed = orders.resume(order, by=by, reason=reason)
    return changed, _("It continues.") if changed else _("It was not stopped.")


# Each needs the permission of the order's action.
ACTS: Mapping[str, tuple[Act, frozenset[str]]] = {
    "cancel": (
        Act(
            name="cancel",
            permission="",
            label=gettext_lazy("Cancel"),
            question=gettext_lazy("No more jobs are changed; what is done stays done."),
            run=_cancel,
            dangerous=True,
        ),
        frozenset({BulkOrder.State.RUNNING}),
    ),
    "resume": (
        Act(
            name="resume",
            permission="",
            label=gettext_lazy("Resume"),
            question=gettext_lazy("It continues where it stopped, under your name."),
            run=_resume,
        ),
        frozenset({BulkOrder.State.CANCELLED, BulkOrder.State.REFUSED}),
    ),
}


def submit(
    request: HttpRequest,
    verb: JobVerb,
    choice: perform.Choice,
    data: dict[str, object],
    home: str,
    moment: datetime,
) -> HttpResponse:
    """Store the order, work on it for a moment, and redirect to its page if more is left to do."""
    user, selection = cast(User, request.user), cast(operations.Selection, choice.selection)
    try:
        order, created = orders.ask(
            verb=verb.name,
            selection=selection,
            moment=moment,
            parameters=data,
            asker=user,
            nonce=perform.nonce(request.POST),
            expected=choice.estimate,
        )
    except PermissionError as error:
        raise PermissionDenied from error
    if created:
        perform.log_object(user, order, ADDITION, f"{verb.name}: {data['reason']}")
    orders.work_through(order.pk, AT_ONCE_SECONDS, stopping=lambda: False)
    order.refresh_from_db()
    if order.state != BulkOrder.State.DONE:
        return redirect("admin:jobqueue_bulkorder_change", order.pk)
    level = messages.SUCCESS if order.changed else messages.WARNING
    say(request, level, sentence(verb, result_of(order)))
    return redirect(home)


def result_of(order: BulkOrder) -> operations.Result:
    """What it has done so far, in the form of an action's result."""
    return operations.Result(
        verb=order.verb, changed=order.changed, asked=order.asked, left=order.left
    )


@admin.register(BulkOrder)
class BulkOrderAdmin(DeskAdmin):
    """Actions that were requested for all matching jobs."""

    permission = "jobqueue.view_job"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<int:pk>/", self.order_page, "change"),
            self.route("<int:pk>/drive/", self.drive, "drive"),
            self.route("<int:pk>/act/<slug:name>/", self.act, "act"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The newest orders."""
        rows = BulkOrder.objects.using(settings().database).order_by("-pk")[:SHOWN]
        context = {
            "title": _("Bulk orders"),
            "now": database_time(),
            "orders": [(order, VERBS.get(order.verb)) for order in rows],
        }
        return self.render(request, "order_list.html", context)

    def order_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One order: its progress, and who decided what."""
        order = self._get(pk)
        return self.render_live(
            request, "order.html", "order_live.html", self._facts(request, order)
        )

    def drive(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Continue it for a moment: the page's own refresh, by POST."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        order = self._get(pk)
        if not self._may(request, order):
            raise PermissionDenied
        orders.work_through(order.pk, AT_ONCE_SECONDS, stopping=lambda: False)
        if is_fragment(request):
            return self.render(request, "order_live.html", self._facts(request, self._get(pk)))
        return redirect("admin:jobqueue_bulkorder_change", pk)

    def act(self, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        """Cancel or resume it: an action of its own."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        order = self._get(pk)
        act, _states = ACTS.get(name, (None, frozenset()))
        if act is None or not self._may(request, order):
            raise PermissionDenied
        home = reverse("admin:jobqueue_bulkorder_change", args=[pk])
        rightful = replace(act, permission=self._right(order))
        return perform.perform_act(self, request, rightful, order, home)

    def _facts(self, request: HttpRequest, order: BulkOrder) -> dict[str, Any]:
        now, verb = database_time(), VERBS.get(order.verb)
        allowed = self._may(request, order)
        trail = order.trail if isinstance(order.trail, list) else []
        return {
            "title": f"{verb.label if verb else order.verb} #{order.pk}",
            "now": now,
            "order": order,
            "verb": verb,
            "done": sentence(verb, result_of(order)) if verb else "",
            "seen": order.changed + sum(order.left.values()),
            "runs": order.state == BulkOrder.State.RUNNING,
            "may_drive": allowed,
            "filter": sorted(order.filter.items()) if isinstance(order.filter, dict) else [],
            "trail": [{**entry, "at": parse_datetime(entry["at"])} for entry in trail],
            "workers": any(row.alive for row in stats.workers(now, None)),
            "acts": [act for act, states in ACTS.values() if allowed and order.state in states],
        }

    def _right(self, order: BulkOrder) -> str:
        verb = VERBS.get(order.verb)
        return verb.permission if verb else ""

    def _may(self, request: HttpRequest, order: BulkOrder) -> bool:
        right = self._right(order)
        return bool(right) and may(request.user, right)

    def _get(self, pk: int) -> BulkOrder:
        found = None
        if pk <= BIGINT_MAX:
            found = BulkOrder.objects.using(settings().database).filter(pk=pk).first()
        if found is None:
            raise Http404(_("There is no such order."))
        return found
