"""The dashboard's entry in the admin's index, among the models."""

from django.utils.translation import gettext_lazy as _

from jobqueue.models.job import Job


class Dashboard(Job):
    """No table of its own: the admin links and routes what is registered as a model."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")
