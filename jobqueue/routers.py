"""Puts the tables on `JOBQUEUE["DATABASE"]`, and nowhere else."""

from __future__ import annotations

from typing import Any

from django.db import connections, models, router

from jobqueue.conf import settings

APP = "jobqueue"


class JobQueueRouter:
    """Decides for this app's models only.

    The app appends it to the project's routers by itself. List it in `DATABASE_ROUTERS`, before
    the others, if one of those decides for every model.
    """

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return settings().database if model._meta.app_label == APP else None

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return settings().database if model._meta.app_label == APP else None

    def allow_relation(self, one: models.Model, other: models.Model, **hints: Any) -> bool | None:
        return True if one._meta.app_label == other._meta.app_label == APP else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return may_hold_the_tables(db) if app_label == APP else None


def may_hold_the_tables(alias: str) -> bool:
    """Whether this alias leads to the queue's database. A second alias may reach it another way,
    such as through a pooler, and shares its record of applied migrations."""
    home = settings().database
    if alias == home:
        return True
    one, other = connections[alias], connections[home]
    return one.vendor == other.vendor == "postgresql" and bool(_names(one) & _names(other))


def _names(connection: Any) -> set[str]:
    """What the database is called, in a test run too, where the aliases are renamed in turn."""
    name = str(connection.settings_dict["NAME"] or "")
    return {name, connection.settings_dict["TEST"]["NAME"] or f"test_{name}"}


def install() -> None:
    """Append the router to the project's own, which are asked first."""
    if not any(isinstance(each, JobQueueRouter) for each in router.routers):
        router.routers = [*router.routers, JobQueueRouter()]


def is_heard() -> bool:
    """Whether the project's routers leave the app's models on the queue's database."""
    from jobqueue.models import Job

    home = settings().database
    return router.db_for_write(Job) == home and bool(router.allow_migrate_model(home, Job))
