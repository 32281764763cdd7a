"""The same handler for the worker's own events."""

from tests.processes.mute_mail import *  # noqa: F403

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "mail": {"class": "tests.processes.mute_mail.Mute", "level": "ERROR"},
        "file": {"class": "logging.StreamHandler", "formatter": "line"},
    },
    "formatters": {"line": {"()": "jobqueue.logs.Formatter", "format": "%(message)s"}},
    "loggers": {"jobqueue": {"handlers": ["file", "mail"], "level": "INFO"}},
}
