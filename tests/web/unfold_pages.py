"""Requests every admin page in django-unfold's theme; fails by an exception."""

import json
import sys

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import setup_test_environment  # noqa: E402

setup_test_environment()
client = Client()
client.force_login(User.objects.get(username="ann"))
for address in json.loads(sys.argv[1]):
    answer = client.get(address)
    shown = answer.content.decode()
    assert answer.status_code == 200, address
    assert 'class="jq"' in shown, address
    assert "unfold/css/styles.css" in shown, address
    assert "django_htmx" not in shown, address  # the theme brings its own
