"""The queue's terms in the operator's language."""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.functional import Promise
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobqueue.states import Phase, Reason

REASONS: Mapping[str, Promise] = {
    Reason.PERMANENT: _("permanent error"),
    Reason.ATTEMPTS_SPENT: _("attempts spent"),
    Reason.TIMED_OUT: _("timed out"),
    Reason.WORKER_LOST: _("worker lost"),
    Reason.INVALID_ARGUMENTS: _("invalid arguments"),
    Reason.BAD_RESULT: _("bad result"),
    Reason.EXPIRED: _("expired"),
    Reason.UNKNOWN_TASK: _("unknown task"),
    Reason.CANCELLED_WAITING: _("cancelled before start"),
    Reason.CANCELLED_COOPERATIVE: _("cancelled by the handler"),
    Reason.CANCELLED_FORCED: _("cancelled by force"),
    Reason.CANCELLED_INSTEAD: _("cancelled instead of running again"),
    Reason.CANCELLED_LOST: _("cancelled after its worker was lost"),
    Reason.RETRY: _("retry"),
    Reason.SNOOZED: _("snoozed"),
    Reason.INTERRUPTED: _("interrupted"),
    Reason.HELD: _("held until its old process is gone"),
    Reason.NO_CONNECTION: _("no database connection"),
    Reason.COMMIT_LOST: _("connection lost at COMMIT"),
    Reason.RETURNED: _("returned unstarted"),
}
LOST_WITH = f"{Reason.WORKER_LOST} with jobs "


def reason_label(reason: str) -> str:
    """What a job's reason is called."""
    if reason.startswith(LOST_WITH):
        return gettext("worker lost with jobs %(ids)s") % {"ids": reason.removeprefix(LOST_WITH)}
    return str(REASONS.get(reason, reason))


PHASES: Mapping[str, Promise] = {
    Phase.STARTING: _("starting"),
    Phase.RUNNING: pgettext_lazy("worker", "running"),
    Phase.DRAINING: _("draining"),
    Phase.CANCELLING: _("cancelling its jobs"),
    Phase.RELEASING: _("giving jobs back"),
    Phase.STOPPED: _("stopped"),
}
BLOCKED_LOOP = "blocked_loop"
# The values of `JobEvent.kind`.
ACTS: Mapping[str, Promise] = {
    "cancel": pgettext_lazy("act", "cancel"),
    "retry": pgettext_lazy("act", "retry"),
    "run now": pgettext_lazy("act", "run now"),
    "reprioritise": _("changed its priority"),
    "move": _("moved it to another queue"),
    "bulk": _("asked for a bulk act"),
    "order": _("requested it"),
    "cancel order": pgettext_lazy("act", "cancelled it"),
    "resume order": pgettext_lazy("act", "resumed it"),
    "done": pgettext_lazy("act", "done"),
    "refused": pgettext_lazy("act", "refused"),
    "run schedule": _("ran the schedule"),
    "expire": _("expired"),
    "reclaim": _("taken back from its worker"),
    BLOCKED_LOOP: _("blocked the event loop"),
}
REPORT: Mapping[str, Promise] = {
    "claimed": _("Claimed"),
    "completed": _("Completed"),
    "interrupted": _("Interrupted"),
    "returned": _("Returned"),
    "unrecorded": _("Unrecorded"),
    "signals_dropped": _("Signals dropped"),
    "log_records_dropped": _("Log records dropped"),
    "duration_seconds": _("Duration in seconds"),
    "reason": _("Reason"),
}
