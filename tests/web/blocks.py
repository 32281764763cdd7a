"""A block of work that does not commit."""

import contextlib
from collections.abc import Iterator

from django.db import transaction


class Failure(Exception):
    """What a view may raise."""


@contextlib.contextmanager
def rolled_back() -> Iterator[None]:
    """Run the block in a transaction, or in a savepoint of the open one, and undo it."""
    with contextlib.suppress(Failure), transaction.atomic():
        yield
        raise Failure
