"""`manage.py runworker`: run jobs until asked to stop."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobqueue import log_output, logs
from jobqueue.command_line import Options
from jobqueue.launch import launch


class Command(BaseCommand):
    """Parses the options; the work is in `jobqueue.launch` and `jobqueue.worker`."""

    help = "Run jobs. TERM or INT drains; a second one cancels running jobs; a third exits at once."
    requires_system_checks: list[str] = []  # `launch` checks the settings itself

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options of the contract; durations in seconds."""
        add = parser.add_argument
        add(
            "--queues",
            metavar="NAME[:WEIGHT],…",
            help="Default: the QUEUES of TASKS. '*': every queue; '*,-mail': all but mail.",
        )
        add("--concurrency", type=int, help="Handlers at once. Default: JOBQUEUE['CONCURRENCY'].")
        add("--processes", type=int, default=1, help="Number of worker processes, supervised.")
        add("--until-idle", action="store_true", help="Exit when nothing is left to do.")
        add("--max-runtime", type=float, metavar="S", help="Exit after serving this many seconds.")
        add("--max-jobs", type=int, help="Exit once so many attempts have begun and ended.")
        add("--max-memory", type=int, metavar="MiB", help="Exit at so much resident memory.")
        add("--name", default="", help="A name for logs and the admin.")
        add("--tenant", action="append", default=[], help="Not supported by this version.")
        add("--no-leader", action="store_true", help="Never do the fleet's housekeeping.")
        add(
            "--log-format",
            choices=[log_output.JSON, log_output.TEXT],
            help="Of the events on stderr, where LOGGING sets up no handlers. Default: text on a "
            "terminal, else JSON.",
        )
        add("--probe", metavar="HOST:PORT", help="Serve liveness, readiness and metrics there.")

    def handle(self, *args: Any, **options: Any) -> None:
        logs.set_up(options["log_format"], debug=options["verbosity"] > 1)
        if options["tenant"]:
            sys.stderr.write("runworker: --tenant is not supported by this version.\n")
            sys.exit(2)
        code = launch(
            Options(
                queues=options["queues"],
                concurrency=options["concurrency"],
                processes=options["processes"],
                until_idle=options["until_idle"],
                max_runtime=options["max_runtime"],
                max_jobs=options["max_jobs"],
                max_memory=options["max_memory"],
                name=options["name"],
                lead=not options["no_leader"],
                probe=options["probe"],
            )
        )
        if code:
            sys.exit(code)
