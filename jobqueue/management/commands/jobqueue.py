"""`manage.py jobqueue`: inspect and control the queue. This file only parses the command line."""

from __future__ import annotations

import json
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.db.models import QuerySet

from jobqueue import operations, queue_names
from jobqueue.conf import QUEUE_NAME, QUEUE_NAME_RULE, settings
from jobqueue.insight import doctor, stats
from jobqueue.models import Job
from jobqueue.operations import Result
from jobqueue.redact import cover, cover_text, printable, terminal
from jobqueue.states import FINAL, State

LEFT_ALONE = 3
UNDEFINED_TABLE, UNDEFINED_COLUMN = "42P01", "42703"
# Which jobs a subcommand without ids applies to.
SOURCES = {
    "cancel": [State.SCHEDULED, State.READY, State.BLOCKED, State.RUNNING],
    "retry": [State.DEAD, State.CANCELLED],
}


class Command(BaseCommand):
    help = (
        "Inspect and operate the job queue. Exit codes: 0 done; 1 could not (settings, database); "
        "2 bad arguments; 3 done, but something was left alone or is to be changed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
        status = commands.add_parser("status", help="jobs by state, queues, workers, leader")
        for verb in ("pause", "resume"):
            each = commands.add_parser(verb, help=f"{verb} queues")
            each.add_argument("queue", nargs="+", type=_queue_name)
            _add_who(each)
        for verb in ("cancel", "retry"):
            each = commands.add_parser(verb, help=f"{verb} jobs, by id or by filter")
            each.add_argument("id", nargs="*", type=_id)
            each.add_argument("--queue", type=_queue_name)
            each.add_argument("--task", help="dotted path")
            each.add_argument("--state", choices=[str(state) for state in SOURCES[verb]])
            each.add_argument(
                "--all", action="store_true", help="no filter: every job it applies to"
            )
            _add_who(each)
        prune = commands.add_parser("prune", help="delete final jobs past their retention")
        prune.add_argument("--older-than", type=_seconds, metavar="SECONDS")
        prune.add_argument("--state", choices=sorted(str(state) for state in FINAL))
        examine = commands.add_parser(
            "doctor", help="check settings, database and workers, and say what to change"
        )
        examine.add_argument(
            "--grace", type=_seconds, help="seconds from the platform's TERM to its KILL"
        )
        for each in (status, prune, examine):
            each.add_argument("--json", action="store_true")
        _add_worker(commands)
        for each in commands.choices.values():
            _add_common(each)

    def handle(self, *args: Any, **options: Any) -> None:
        what = options["what"]
        if what == "worker":
            options["worker_command"].handle(*args, **options)
            return
        try:
            getattr(self, f"do_{what}")(options)
        except (DatabaseError, ImproperlyConfigured, ValueError) as error:
            raise CommandError(terminal(_one_line(error))) from error

    def do_status(self, options: dict[str, Any]) -> None:
        figures, queues, leader = stats.figures(), stats.queues(), stats.leader()
        workers = stats.workers(figures.now, leader)
        if options["json"]:
            self._json(
                now=figures.now.isoformat(),
                states={str(k): asdict(v) for k, v in figures.states.items()},
                queues=[
                    {**asdict(q), "paused_at": q.paused_at and q.paused_at.isoformat()}
                    for q in queues
                ],
                workers=[
                    {
                        "id": str(row.worker.pk),
                        "name": str(row.worker),
                        "phase": row.worker.phase,
                        "used": row.used,
                        "concurrency": row.worker.concurrency,
                        "alive": row.alive,
                        "silent_seconds": row.silent_seconds,
                        "leads": row.leads,
                    }
                    for row in workers
                ],
                leader=leader
                and {"holder": leader.holder and str(leader.holder), "term": leader.term},
            )
            return
        for name, count in figures.states.items():
            self._line(f"{name.lower():<10} {'' if count.exact else '~'}{count.value}")
        for queue in queues:
            by = cover_text(queue.paused_by) or "somebody"
            paused = f", paused by {by}" if queue.paused_at else ""
            oldest = (
                "" if queue.oldest_seconds is None else f", oldest {queue.oldest_seconds:.0f} s"
            )
            more = "" if queue.ready.exact else "+"
            self._line(
                f"queue {queue.name}: {queue.ready.value}{more} ready{oldest}, {queue.running} "
                f"running, {queue.workers} workers{paused}"
            )
        for row in workers:
            state = row.worker.phase if row.alive else f"silent for {row.silent_seconds:.0f} s"
            leads = ", leads" if row.leads else ""
            name, slots = cover_text(str(row.worker)), row.worker.concurrency
            self._line(f"worker {name}: {row.used}/{slots} slots, {state}{leads}")

    def do_pause(self, options: dict[str, Any]) -> None:
        self._switch(operations.pause, options)

    def do_resume(self, options: dict[str, Any]) -> None:
        self._switch(operations.resume, options)

    def _switch(self, verb: Callable[..., Result], options: dict[str, Any]) -> None:
        """All of them or none: a misspelt name must not hide what happened to the others."""
        faults = [fault for name in options["queue"] if (fault := queue_names.unknown(name))]
        if faults:
            raise CommandError(terminal(" ".join(faults)), returncode=2)
        by, reason = options["by"], options["reason"]
        self._report([verb(name, by=by, reason=reason) for name in options["queue"]], options)

    def do_cancel(self, options: dict[str, Any]) -> None:
        jobs = _chosen("cancel", options)
        self._report([operations.cancel(jobs, by=options["by"], reason=options["reason"])], options)

    def do_retry(self, options: dict[str, Any]) -> None:
        jobs = _chosen("retry", options)
        self._report([operations.retry(jobs, by=options["by"], reason=options["reason"])], options)

    def do_prune(self, options: dict[str, Any]) -> None:
        states = [options["state"]] if options["state"] else sorted(FINAL)
        ages = {
            State(state): settings().retention[state]
            if options["older_than"] is None
            else options["older_than"]
            for state in states
        }
        limits = {state: age for state, age in ages.items() if age is not None}
        self._report([operations.prune(limits, by="manage.py")], options)

    def do_doctor(self, options: dict[str, Any]) -> None:
        found = doctor.examine(options["grace"])
        if options["json"]:
            self._json(findings=[finding.as_dict() for finding in found])
        else:
            for finding in found:
                self._line(cover_text(str(finding)))
            if not found:
                self._line("Nothing to change.")
        if any(finding.level == doctor.ERROR for finding in found):
            raise SystemExit(1)
        if any(finding.level == doctor.WARNING for finding in found):
            raise SystemExit(LEFT_ALONE)

    def _report(self, results: list[operations.Result], options: dict[str, Any]) -> None:
        if options["json"]:
            self._json(results=[asdict(result) for result in results])
        else:
            for result in results:
                self._line(cover_text(str(result)))
        if any(result.untouched for result in results):
            raise SystemExit(LEFT_ALONE)

    def _json(self, **facts: Any) -> None:
        self.stdout.write(json.dumps(cover(facts)))  # in ASCII: it may go to a terminal

    def _line(self, covered: str) -> None:
        self.stdout.write(printable(covered))


def _add_who(parser: CommandParser) -> None:
    parser.add_argument("--by", default="manage.py", help="the name in the job's history")
    parser.add_argument("--reason", default="")
    parser.add_argument("--json", action="store_true")


def _add_common(parser: CommandParser) -> None:
    """Django's own options, which people write at the end: here they come after the subcommand."""
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, default=SUPPRESS, help=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(name, action="store_true", default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("-v", "--verbosity", type=int, default=SUPPRESS, help=SUPPRESS)


def _add_worker(commands: Any) -> None:
    """`jobqueue worker` is `runworker`, under a name that no other package takes."""
    from jobqueue.management.commands.runworker import Command as Worker

    worker = Worker()
    parser = commands.add_parser("worker", help="run a worker; the same as runworker")
    worker.add_arguments(parser)
    parser.set_defaults(worker_command=worker)


def _chosen(verb: str, options: dict[str, Any]) -> QuerySet[Job] | list[int]:
    filters = {name: options[name] for name in ("queue", "task", "state") if options[name]}
    if options["id"]:
        if filters or options["all"]:
            raise CommandError("Give ids or a filter, not both.", returncode=2)
        return list(options["id"])
    if not filters and not options["all"]:
        raise CommandError(
            "Say which jobs: ids, --queue, --task or --state, or --all.", returncode=2
        )
    return Job.objects.filter(**{"state__in": SOURCES[verb], **filters})


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63):
        raise ArgumentTypeError(f"{text!r} is not a job's id")
    return int(text)


def _queue_name(text: str) -> str:
    if not QUEUE_NAME.match(text):
        raise ArgumentTypeError(f"{text!r} is not a queue name: write {QUEUE_NAME_RULE}")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e10:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _one_line(error: Exception) -> str:
    if isinstance(error, ImproperlyConfigured):
        return str(error).replace("\n", " ")
    if getattr(error.__cause__, "sqlstate", None) in (UNDEFINED_TABLE, UNDEFINED_COLUMN):
        command = settings().migrate_command
        return f"The tables of jobqueue are missing or old: run `{command}`."
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
