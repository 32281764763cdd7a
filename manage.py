#!/usr/bin/env python
import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db import OperationalError


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"manage.py: {error}")
    except OperationalError as error:
        hint = "" if os.environ.get("DATABASE_URL") else " Run `make demo`, or set DATABASE_URL."
        sys.exit(f"manage.py: the database failed: {' '.join(str(error).split())}{hint}")


if __name__ == "__main__":
    main()
