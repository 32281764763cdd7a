"""What all pages have in common: permissions, read-only by default, the admin's layout."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connections, transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.clickjacking import xframe_options_deny
from psycopg.errors import QueryCanceled

from jobqueue.conf import settings
from jobqueue.redact import cover_text

View = Callable[..., HttpResponse]
# How long one statement of a page may take: a viewer must not be able to keep the server busy.
STATEMENT_SECONDS = 5.0

if TYPE_CHECKING:
    _Base = admin.ModelAdmin[Model]
else:
    _Base = admin.ModelAdmin


class DeskAdmin(_Base):
    """A model in the admin whose pages are our own.

    Django's forms for adding, changing and deleting have no URLs here: the queue's rows change by
    actions only.
    """

    permission = ""  # the permissions to see the pages, "app.codename"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return may(request.user, self.permission)

    def page(self, view: View) -> View:
        """Wrap a view: staff with the view permission only, CSRF, never cached, never framed."""

        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            with timezone.override(viewer_zone(request)):
                if request.method != "GET":
                    return view(request, *args, **kwargs)
                return self._read(request, view, *args, **kwargs)

        return xframe_options_deny(self.admin_site.admin_view(guarded))

    def _read(self, request: HttpRequest, view: View, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show a page in a transaction whose statements are bounded, or say that it took too long.
        The bound ends with the transaction, so a pooler's other clients never see it."""
        alias = settings().database
        try:
            with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                limit = f"{STATEMENT_SECONDS * 1000:.0f}"
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [limit])
                return view(request, *args, **kwargs)
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
        context = {"title": _("This page took too long"), "seconds": STATEMENT_SECONDS}
        return self.render(request, "too_slow.html", context, status=503)

    def route(self, where: str, view: View, name: str) -> URLPattern:
        """Return one URL of this admin, named `jobqueue_<model>_<name>`."""
        options = self.opts
        return path(where, self.page(view), name=f"{options.app_label}_{options.model_name}_{name}")

    def render(
        self, request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
    ) -> HttpResponse:
        """Render a page inside the admin's layout; the context needs a `title`."""
        request.current_app = self.admin_site.name
        full = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            # Unfold brings an htmx of its own; a second one would send every request twice.
            "htmx": apps.is_installed("django_htmx") and not apps.is_installed("unfold"),
            **context,
        }
        # Rendered here, not by a TemplateResponse: the viewer's zone is active in the view only.
        return render(request, f"jobqueue/admin/{template}", full, status=status)

    def render_live(
        self, request: HttpRequest, page: str, inside: str, context: dict[str, Any]
    ) -> HttpResponse:
        """Render a page, or only its live part, which refreshes itself."""
        return self.render(request, inside if is_fragment(request) else page, context)


def say(request: HttpRequest, level: int, text: str) -> None:
    """Show one sentence on the next page, covered: it may quote an error."""
    messages.add_message(request, level, cover_text(text))


def may(user: AbstractBaseUser | AnonymousUser | User, permission: str) -> bool:
    """Whether this user has the permission, written "app.codename"."""
    return bool(getattr(user, "is_active", False)) and user.has_perm(permission)  # type: ignore[union-attr]


ZONE_COOKIE = "jobqueue_zone"


def viewer_zone(request: HttpRequest) -> tzinfo:
    """The browser's time zone as our script reports it, otherwise the active one."""
    try:
        return ZoneInfo(unquote(request.COOKIES[ZONE_COOKIE]))
    except (KeyError, ValueError, OSError):
        return timezone.get_current_timezone()


def is_fragment(request: HttpRequest) -> bool:
    """Whether htmx requests a part of a page."""
    return request.headers.get("HX-Request") == "true"
