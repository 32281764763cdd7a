"""What an operator may do to jobs from a page: permission, text, and the operation that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_lazy, ngettext

from jobqueue import operations, queue_names
from jobqueue.conf import QUEUE_NAME, QUEUE_NAME_RULE
from jobqueue.models.job import STATE_LABELS
from jobqueue.operations import BulkVerb, orders, verbs
from jobqueue.states import State


class ReasonForm(forms.Form):
    """The arguments of every action."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), required=False, max_length=200, strip=True
    )


class PriorityForm(ReasonForm):
    priority = forms.IntegerField(label=gettext_lazy("Priority"), min_value=-100, max_value=100)


class QueueForm(ReasonForm):
    queue = forms.CharField(label=gettext_lazy("Queue"), max_length=63)

    def clean_queue(self) -> str:
        name = str(self.cleaned_data["queue"])
        if not QUEUE_NAME.match(name):
            raise forms.ValidationError(
                gettext("Not a queue name: write %(rule)s."), params={"rule": QUEUE_NAME_RULE}
            )
        if queue_names.fault(name):
            raise forms.ValidationError(
                gettext("No job can be in this queue. QUEUES of TASKS has: %(known)s."),
                params={"known": ", ".join(queue_names.configured())},
            )
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerb:
    """One action on jobs, in an operator's words."""

    act: BulkVerb
    label: Promise
    question: Promise
    done: Callable[[int], str]
    form: type[ReasonForm] = ReasonForm
    dangerous: bool = False

    @property
    def name(self) -> str:
        return self.act.name

    @property
    def permission(self) -> str:
        return self.act.permission

    @property
    def states(self) -> frozenset[State]:
        return self.act.states


VERBS: Mapping[str, JobVerb] = {
    verb.name: verb
    for verb in (
        JobVerb(
            act=verbs.VERBS["cancel"],
            label=gettext_lazy("Cancel"),
            question=gettext_lazy(
                "Waiting jobs end at once; running ones are asked to stop and may clean up."
            ),
            done=lambda n: ngettext("Cancelled %(n)d job", "Cancelled %(n)d jobs", n) % {"n": n},
            dangerous=True,
        ),
        JobVerb(
            act=verbs.VERBS["retry"],
            label=gettext_lazy("Retry"),
            question=gettext_lazy("They run again with a fresh budget; their history stays."),
            done=lambda n: ngettext("Retried %(n)d job", "Retried %(n)d jobs", n) % {"n": n},
        ),
        JobVerb(
            act=verbs.VERBS["run-now"],
            label=gettext_lazy("Run now"),
            question=gettext_lazy("Scheduled jobs become ready without waiting for their moment."),
            done=lambda n: ngettext("Made %(n)d job ready", "Made %(n)d jobs ready", n) % {"n": n},
        ),
        JobVerb(
            act=verbs.VERBS["priority"],
            label=gettext_lazy("Change priority"),
            question=gettext_lazy("Waiting jobs get another priority, from -100 to 100."),
            done=lambda n: (
                ngettext(
                    "Changed the priority of %(n)d job", "Changed the priority of %(n)d jobs", n
                )
                % {"n": n}
            ),
            form=PriorityForm,
        ),
        JobVerb(
            act=verbs.VERBS["move"],
            label=gettext_lazy("Move to another queue"),
            question=gettext_lazy("Waiting jobs go to another queue; workers must serve it."),
            done=lambda n: ngettext("Moved %(n)d job", "Moved %(n)d jobs", n) % {"n": n},
            form=QueueForm,
        ),
        JobVerb(
            act=verbs.VERBS["delete"],
            label=gettext_lazy("Delete"),
            question=gettext_lazy("Finished jobs are deleted with their history, for good."),
            done=lambda n: ngettext("Deleted %(n)d job", "Deleted %(n)d jobs", n) % {"n": n},
            dangerous=True,
        ),
    )
}


def sentence(verb: JobVerb, result: operations.Result) -> str:
    """Say exactly what was done: "Cancelled 311 jobs; 4 were already: Succeeded"."""
    parts = [verb.done(result.changed)]
    if result.asked:
        asked = ngettext(
            "%(n)d of them runs and was asked to stop",
            "%(n)d of them run and were asked to stop",
            result.asked,
        )
        parts.append(asked % {"n": result.asked})
    parts += [_left(word, count) for word, count in sorted(result.left.items())]
    return "; ".join(parts) + "."


def _left(word: str, count: int) -> str:
    match word:
        case operations.MISSING:
            text = ngettext("%(n)d does not exist any more", "%(n)d do not exist any more", count)
        case operations.ASKED:
            text = ngettext(
                "%(n)d had been asked to stop already",
                "%(n)d had been asked to stop already",
                count,
            )
        case operations.HELD:
            text = ngettext(
                "%(n)d may still be touched by its old process",
                "%(n)d may still be touched by their old processes",
                count,
            )
        case orders.CANNOT:
            text = ngettext(
                "%(n)d was refused by the database", "%(n)d were refused by the database", count
            )
        case operations.SAME:
            text = ngettext("%(n)d was so already", "%(n)d were so already", count)
        case operations.NEWER:
            text = ngettext("%(n)d needs newer code", "%(n)d need newer code", count)
        case operations.LATER:
            text = ngettext(
                "%(n)d has run and ended again since", "%(n)d have run and ended again since", count
            )
        case _:
            label = STATE_LABELS[State(word)] if word in State else word
            text = ngettext(
                "%(n)d was left alone: it is %(state)s",
                "%(n)d were left alone: they are %(state)s",
                count,
            )
            return text % {"n": count, "state": label}
    return text % {"n": count}
