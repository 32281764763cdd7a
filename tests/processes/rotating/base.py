"""PostgreSQL, with the user that a file names at this moment."""

import os
from pathlib import Path
from typing import Any

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        user = Path(os.environ["CREDENTIALS"]).read_text().strip()
        return {**super().get_connection_params(), "user": user}
