"""The site's settings with a test's own JOBQUEUE: short leases and short graces."""

import json
import os

from project.settings import *  # noqa: F403

JOBQUEUE = json.loads(os.environ.get("JOBQUEUE_SETTINGS", "{}"))
LOGGING_CONFIG = None
