"""The site with a Django that asks for a newer server than there is."""

from django.db.backends.postgresql.features import DatabaseFeatures

from project.settings import *  # noqa: F403

DatabaseFeatures.minimum_database_version = (99,)
