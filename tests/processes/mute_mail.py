"""The tests' settings with a project's logging that hangs: a mute mail server."""

import logging
import time

from django.utils.log import DEFAULT_LOGGING

from tests.processes.settings import *  # noqa: F403


class Mute(logging.Handler):
    """Never comes back, and holds its lock meanwhile, as an e-mail's handler does."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(3600)


LOGGING_CONFIG = "logging.config.dictConfig"
LOGGING = {
    **DEFAULT_LOGGING,
    "handlers": {"mail": {"class": "tests.processes.mute_mail.Mute", "level": "ERROR"}},
    "formatters": {},
    "loggers": {"django": {"handlers": ["mail"], "level": "INFO"}},
}
