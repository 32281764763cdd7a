"""The site with django-unfold's theme around the admin."""

import os

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
DATABASES["default"]["NAME"] = os.environ["UNFOLD_DATABASE"]
