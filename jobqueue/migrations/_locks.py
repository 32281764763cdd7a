"""Locks of migrations on tables in use."""

from django.db import migrations

SECONDS = 4
FORWARD = f"SET LOCAL lock_timeout = '{SECONDS}s'"


class LockTimeout(migrations.RunSQL):
    """First in each migration that changes a table: whoever waits for an exclusive lock holds up
    everybody who comes later. After these seconds the migration fails, nothing is changed, and it
    can be run again."""

    def __init__(self) -> None:
        super().__init__(FORWARD, FORWARD)

    def deconstruct(self) -> tuple[str, list[object], dict[str, object]]:
        return self.__class__.__name__, [], {}
