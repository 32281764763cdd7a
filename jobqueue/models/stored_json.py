"""A JSON column of which one bad value fails nobody who reads the other rows."""

from typing import Any

from django.db import models
from django.db.models.lookups import Exact

from jobqueue.stored_json import Unreadable, read_stored


def is_of_kind(column: str, kind: str) -> models.Q:
    """A constraint: the column holds an `object`, an `array`, …"""
    found = models.Func(column, function="jsonb_typeof", output_field=models.TextField())
    return models.Q(Exact(found, models.Value(kind)))


class StoredJSONField(models.JSONField):
    """Django's own, except that what Python cannot read comes as Unreadable, and is never written
    back."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return read_stored(value) if isinstance(value, str) else value

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if isinstance(value, Unreadable):
            raise TypeError(f"{self.name} {value}; it is kept as it is.")
        return super().get_db_prep_save(value, connection)

    def deconstruct(self) -> Any:
        """For migrations it is Django's own."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs
