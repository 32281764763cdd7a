"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobQueueConfig(AppConfig):
    """Registers the system checks and the router. A reusable app sets up no logs for its host."""

    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobqueue import checks, routers

        routers.install()
        checks.register_all()
