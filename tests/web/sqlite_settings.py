"""The site on SQLite, with the queue on a PostgreSQL of its own; routers from the environment."""

import os

from project.settings import *  # noqa: F403
from project.settings import DATABASES

DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SQLITE_FILE"]},
    "jobs": DATABASES["default"],
}
DATABASE_ROUTERS = [name for name in os.environ.get("ROUTERS", "").split(",") if name]
JOBQUEUE = {"DATABASE": "jobs"}


class Everything:
    """A router that speaks for every model."""

    def db_for_read(self, model: object, **hints: object) -> str:
        return "default"

    db_for_write = db_for_read
