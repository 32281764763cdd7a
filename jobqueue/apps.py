"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobQueueConfig(AppConfig):
    """Registers the system checks and the router. It does not configure its host's logging."""

    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobqueue import checks, routers

        routers.install()
        checks.register_all()
