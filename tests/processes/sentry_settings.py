"""The tests' settings in a project that uses Sentry, whose events go to a file."""

import json
import os
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.processes.settings import *  # noqa: F403
from tests.processes.settings import TASKS


class ToFile(Transport):
    """One line for each event."""

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type == "event":
                with open(os.environ["SENTRY_FILE"], "a") as file:
                    file.write(json.dumps(item.payload.json, default=str) + "\n")

    def flush(self, *_: Any, **__: Any) -> None:
        pass


TASKS = {**TASKS, "immediate": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
sentry_sdk.init(dsn="https://public@localhost/1", transport=ToFile)
