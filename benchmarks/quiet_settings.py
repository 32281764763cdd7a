"""The site's settings without NOTIFY: what a wake costs the one who enqueues."""

from project.settings import *  # noqa: F403

JOBQUEUE = {"NOTIFY": False}
