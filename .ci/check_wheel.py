"""Check the installed wheel: it holds every file named on stdin, and every module imports."""

import importlib
import pkgutil
import sys
from pathlib import Path

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "jobqueue",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "unused"}},
    TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}},
)
django.setup()

import jobqueue  # noqa: E402  # its models need the settings

package = Path(jobqueue.__path__[0])
wanted = [line.strip() for line in sys.stdin]
missing = [name for name in wanted if not (package.parent / name).is_file()]
if missing or not wanted:
    sys.exit(f"The wheel lacks files: {missing or 'all, since none was named'}")
modules = [module.name for module in pkgutil.walk_packages(jobqueue.__path__, "jobqueue.")]
for name in modules:
    importlib.import_module(name)
print(f"{package}: {len(wanted)} files there, {len(modules)} modules imported")
