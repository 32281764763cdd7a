"""Jobs: the list, one job's page, and the actions on them."""

from __future__ import annotations

from datetime import datetime

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _

from jobqueue import queue_names
from jobqueue.admin import bulk_orders, job_changelist, job_detail, perform
from jobqueue.admin.actions import VERBS, JobVerb
from jobqueue.admin.base import DeskAdmin, is_fragment, may, say
from jobqueue.admin.filters import AGES, PLACES, TABS, Filters, UnreadableFilterError
from jobqueue.insight import stats, why
from jobqueue.models import Job
from jobqueue.states import State


@admin.register(Job)
class JobAdmin(DeskAdmin):
    """All jobs, in every state."""

    permission = "jobqueue.view_job"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.list_page, "changelist"),
            self.route("act/<slug:name>/", self.act, "act"),
            self.route("<int:pk>/", self.job_page, "change"),
            self.route("<int:pk>/live/", self.live, "live"),
            self.route("<int:pk>/history/", self.history, "history"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The list: tabs, filters, one page."""
        try:
            filters, faults = Filters.read(request.GET, PLACES), []
        except UnreadableFilterError as error:
            filters, faults = error.readable, error.faults
        after, before = (request.GET.get(name, "")[:1000] for name in ("after", "before"))
        page = job_changelist.Page(jobs=[])
        if not faults:
            page = job_changelist.fetch(filters, after, before)
        figures = stats.figures()
        context = {
            "title": _("Jobs"),
            "filters": filters,
            "page": page,
            "inside": bool(after or before),
            "on": "before" if before else "after",
            "now": figures.now,
            "tabs": [
                (
                    label,
                    filters.having(state=name).query,
                    figures.states[name] if name else figures.total,
                    name == filters.state,
                )
                for name, label in TABS.items()
            ],
            "ages": [(name, label, name == filters.age) for name, label in AGES.items()],
            "tasks": stats.tasks(),
            "queues": sorted({*queue_names.listed(), *stats.queue_names()}),
            "faults": faults,
            "verbs": [] if faults else self.verbs_for_list(request, filters),
            "window": job_changelist.WINDOW,
            "each_waiting": job_changelist.EACH_WAITING,
        }
        return self.render(request, "job_list.html", context, status=400 if faults else 200)

    def verbs_for_list(self, request: HttpRequest, filters: Filters) -> list[JobVerb]:
        """What this user may do to jobs of this tab."""
        if filters.state == stats.RETRYING:
            states = {State.SCHEDULED}
        else:
            states = {State(filters.state)} if filters.state else set(State)
        return [
            verb
            for verb in VERBS.values()
            if verb.states & states and may(request.user, verb.permission)
        ]

    def job_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One job's page."""
        story = self._story(request, pk)
        return self.render(request, "job.html", {"title": str(story.job), **story.context()})

    def live(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The parts of a job's page that refresh themselves."""
        return self.render(request, "job_live.html", self._story(request, pk).context())

    def _story(self, request: HttpRequest, pk: int) -> job_detail.Story:
        story = job_detail.load(pk)
        if story is None:
            raise Http404(
                _("There is no job %(id)s: it was never there, or was pruned.") % {"id": pk}
            )
        story.causes = why.explain(story.job, story.now)
        story.verbs = [
            verb
            for verb in VERBS.values()
            if story.job.state in verb.states and may(request.user, verb.permission)
        ]
        return story

    def history(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Django's own history page shows nothing that the job's page does not."""
        return redirect("admin:jobqueue_job_change", pk)

    def act(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for confirmation, then act. Never by GET."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        verb = perform.permitted(request, name)
        home = perform.back(request, reverse("admin:jobqueue_job_changelist"))
        try:
            moment = perform.as_of(request.POST)
            choice = perform.choose(verb, request.POST, moment)
            confirmed = "confirmed" in request.POST
            form = verb.form(request.POST if confirmed else None)
            if not choice and not (confirmed and choice.filters is not None):
                say(request, messages.WARNING, _("Nothing was selected."))
                return redirect(home)
            if confirmed and form.is_valid():
                return self._do(request, verb, choice, form.cleaned_data, home, moment)
        except perform.RefusedError as error:
            context = {"title": verb.label, "why": str(error), "next": home}
            return self.render(request, "refused.html", context, status=400)
        context = {
            "title": verb.label,
            "verb": verb,
            "choice": choice,
            "form": form,
            "as_of": moment,
            "next": home,
            "nonce": perform.new_nonce(),
        }
        return self.render(request, "confirm.html", context)

    def _do(
        self,
        request: HttpRequest,
        verb: JobVerb,
        choice: perform.Choice,
        data: dict[str, object],
        home: str,
        moment: datetime,
    ) -> HttpResponse:
        if choice.selection is not None:
            return bulk_orders.submit(request, verb, choice, data, home, moment)
        perform.act(request, verb, choice.ids, data, moment)
        if is_fragment(request) and len(choice.ids) == 1:
            story = self._story(request, choice.ids[0])
            shown = {**story.context(), "act_messages": list(messages.get_messages(request))}
            return self.render(request, "job_live.html", shown)
        return redirect(home)
