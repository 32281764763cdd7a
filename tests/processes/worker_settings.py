"""The example site's settings with JOBQUEUE as the test wants it, from the environment."""

import json
import os

from project.settings import *  # noqa: F403

JOBQUEUE = json.loads(os.environ.get("JOBQUEUE", "{}"))
if engine := os.environ.get("ENGINE"):
    DATABASES["default"]["ENGINE"] = engine  # noqa: F405
