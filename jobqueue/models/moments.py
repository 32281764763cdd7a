"""Moments that Python can read."""

from datetime import UTC, datetime

from django.db.models import Q

# Later moments overflow Python's datetime in some time zone; infinity does not load.
LAST_MOMENT = datetime(9999, 1, 1, tzinfo=UTC)
FIRST_MOMENT = datetime(1, 1, 2, tzinfo=UTC)


def is_sane(column: str) -> Q:
    """The condition of a column that may be empty."""
    between = {f"{column}__gt": FIRST_MOMENT, f"{column}__lt": LAST_MOMENT}
    return Q(**{f"{column}__isnull": True}) | Q(**between)
