"""The form for a schedule that an operator makes, checked like a declaration in code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.forms.fields import InvalidJSONInput
from django.http import QueryDict
from django.tasks.exceptions import InvalidTask
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import redact
from jobqueue.conf import settings
from jobqueue.models import Schedule
from jobqueue.payload import NotJSON, encode
from jobqueue.scheduling import cron, operator_tasks
from jobqueue.tasks import check_arguments, signature_text

if TYPE_CHECKING:
    _Base = forms.ModelForm[Schedule]
else:
    _Base = forms.ModelForm


def covered(schedule: Schedule) -> tuple[Any, Any]:
    """Return its arguments as a page may show them."""
    return redact.cover_arguments(schedule.args, schedule.kwargs, schedule.signature)


class ArgumentsField(forms.JSONField):
    """JSON as a job may hold it: no text that is sent, however deep or odd, is an error."""

    def to_python(self, value: Any) -> Any:
        try:
            found = super().to_python(value)
        except (ValueError, RecursionError) as error:  # also more digits than Python reads
            raise forms.ValidationError(
                self.error_messages["invalid"], params={"value": value}
            ) from error
        try:
            encode(found, _("the value"), settings().args_max_bytes, "ARGS_MAX_BYTES")
        except NotJSON as error:
            raise forms.ValidationError(redact.cover_text(str(error))) from error
        return found

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what the field shows again: as it was sent, where it is refused."""
        try:
            self.to_python(data)
        except forms.ValidationError:
            return InvalidJSONInput(data or "")
        return super().bound_data(data, initial)


class ScheduleForm(_Base):
    """Secrets among the arguments are shown covered, and are kept unless they are edited."""

    task = forms.ChoiceField(
        label=gettext_lazy("Task"),
        help_text=gettext_lazy("The project chooses which tasks are listed: OPERATOR_TASKS."),
    )
    args = ArgumentsField(
        label=gettext_lazy("Arguments"),
        required=False,
        initial=list,
        widget=forms.Textarea({"rows": 3}),
    )
    kwargs = ArgumentsField(
        label=gettext_lazy("Keyword arguments"),
        required=False,
        initial=dict,
        widget=forms.Textarea({"rows": 3}),
    )

    class Meta:
        model = Schedule
        fields = (
            "name",
            "task",
            "cron",
            "timezone",
            "args",
            "kwargs",
            "queue",
            "priority",
            "catch_up",
        )
        widgets = {"cron": forms.TextInput}
        help_texts = {
            "cron": gettext_lazy("Five fields, such as 30 2 * * MON-FRI."),
            "queue": gettext_lazy("Empty: the task's own queue."),
            "priority": gettext_lazy("Empty: the task's own priority."),
        }

    def __init__(self, data: QueryDict | None = None, *, instance: Schedule | None = None) -> None:
        self.stored, initial = instance, {"priority": None}
        if instance is not None:
            self.covered = covered(instance)
            initial = {"args": self.covered[0], "kwargs": self.covered[1]}
        super().__init__(data, instance=instance, initial=initial)
        self.fields["priority"].required = False
        self.tasks = operator_tasks.offered()
        choices = [("", "---------"), *((path, path) for path in self.tasks)]
        cast(forms.ChoiceField, self.fields["task"]).choices = choices

    def clean_args(self) -> Any:
        return self._value("args", list, _('Write a list, such as [7, "mail"].'))

    def clean_kwargs(self) -> Any:
        return self._value("kwargs", dict, _('Write an object, such as {"order": 7}.'))

    def _value(self, name: str, kind: type, wish: str) -> Any:
        value = self.cleaned_data[name]
        value = kind() if value is None else value
        if not isinstance(value, kind):
            raise forms.ValidationError(wish)
        if self.stored is not None and value == self.covered[name == "kwargs"]:
            stored = getattr(self.stored, name)
            # For another task what is hidden would bear another name, and might show.
            if value == stored or self.cleaned_data.get("task") == self.initial["task"]:
                return stored
            raise forms.ValidationError(_("Enter the hidden values again."))
        if redact.COVER in str(value):
            raise forms.ValidationError(_("Enter the hidden values again."))
        return value

    def validate_unique(self) -> None:
        """Django's own check would query the default database."""
        rows = Schedule.objects.using(settings().database).exclude(pk=self.instance.pk)
        if rows.filter(name=self.cleaned_data.get("name")).exists():
            self.add_error("name", _("There is a schedule of that name."))

    def clean(self) -> dict[str, Any]:
        """Report everything now that would make each of its ticks fail."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if "cron" in data and "timezone" in data:
            try:
                cron.check(data["cron"], data["timezone"])
            except cron.CronError as error:
                self.add_error("cron", str(error))
        if "task" in data:
            self._check_call(data)
        if data.get("priority") is None and "priority" not in self.errors:
            data["priority"] = 0  # of a form that is refused anyway
        return data

    def _check_call(self, data: dict[str, Any]) -> None:
        task = self.tasks[data["task"]]
        if {"task", "args"} & set(self.changed_data):  # else they are as they were stored
            self.instance.signature = signature_text(task.func, task.takes_context)
        if data.get("priority") is None and "priority" not in self.errors:
            data["priority"] = task.priority
        try:
            task = task.using(queue_name=data.get("queue") or None, priority=data.get("priority"))
        except InvalidTask as error:
            self.add_error("queue", str(error))
            return
        if "args" in data and "kwargs" in data:
            try:
                check_arguments(task, data["args"], data["kwargs"])
            except (TypeError, ValueError) as error:
                self.add_error("args", redact.cover_text(str(error)))
