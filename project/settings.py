"""Settings of the example site, from the environment where it sets them.

DATABASE_URL names the PostgreSQL; where it is unset, the embedded server's address is read. Nothing
is started here. SECRET_KEY and DEBUG may be set too.
"""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from project import postgres

BASE_DIR = Path(__file__).resolve().parent.parent
STATE = postgres.STATE

env = environ.Env()


def database() -> dict[str, Any]:
    """Return the default database; one that is not running fails only at the first connection."""
    url = os.environ.get("DATABASE_URL") or postgres.address() or postgres.not_started()
    scheme, separator, _ = url.partition("://")
    if scheme not in {"postgres", "postgresql"} or not separator:
        kind = f"a {scheme} database" if separator else "no database server"
        raise ImproperlyConfigured(
            f"DATABASE_URL names {kind}, but jobqueue needs PostgreSQL: "
            "postgresql://user:password@host:port/name"
        )
    try:
        config: dict[str, Any] = environ.Env.db_url_config(url)
    except ValueError:
        raise ImproperlyConfigured(
            "DATABASE_URL cannot be read: write it as postgresql://user:password@host:port/name, "
            "with special characters percent-encoded"
        ) from None
    # In a URL a socket's folder can only be an option; everything else reads HOST.
    config["HOST"] = config.get("OPTIONS", {}).pop("host", config["HOST"])
    return config


def secret_key() -> str:
    """Return this checkout's own key, made at the first call."""
    file = STATE / "secret-key"
    if not file.exists():
        STATE.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=STATE) as draft:
            draft.write(secrets.token_urlsafe(50))
            draft.flush()
            # Several processes may start at once: a link fails where another one was first.
            with contextlib.suppress(FileExistsError):
                os.link(draft.name, file)
    return file.read_text()


SECRET_KEY = env.str("SECRET_KEY", "") or secret_key()
DEBUG = env.bool("DEBUG", True)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_htmx",
    "jobqueue",
    "project.contacts",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TASKS = {
    "default": {
        "BACKEND": "jobqueue.backend.JobQueueBackend",
        "QUEUES": ["default", "mail", "imports"],
    },
}
JOBQUEUE: dict[str, object] = {}

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
MEDIA_ROOT = BASE_DIR / "media"

# E-mails are written to files here, so that the demo needs no mail server.
MAILERS = {
    "default": {
        "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
        "OPTIONS": {"file_path": env.str("OUTBOX", str(BASE_DIR / "outbox"))},
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    # Neither the root nor `jobqueue` has a handler: the worker's events go its own way to stderr.
    "loggers": {
        "django": {"handlers": ["console"], "level": "INFO"},
        # The worker's own events say the same, once.
        "django.tasks": {"level": "CRITICAL"},
    },
}
