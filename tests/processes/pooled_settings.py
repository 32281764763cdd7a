"""The tests' settings as docs/operating.md sets them up for a pooler in transaction mode."""

from tests.processes.settings import *  # noqa: F403

DATABASES["default"].setdefault("OPTIONS", {})["prepare_threshold"] = None  # noqa: F405
