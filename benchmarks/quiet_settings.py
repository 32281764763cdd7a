"""The site's settings without NOTIFY: to see what a wake costs whoever enqueues."""

from project.settings import *  # noqa: F403

JOBQUEUE = {"NOTIFY": False}
