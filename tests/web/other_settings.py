"""The site's settings with what another project may have chosen."""

import os

from project.settings import *  # noqa: F403

DEFAULT_AUTO_FIELD = os.environ["AUTO_FIELD"]
LANGUAGE_CODE = os.environ["LANGUAGE"]
