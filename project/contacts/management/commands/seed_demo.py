from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from project.contacts.models import Import, Webhook
from project.contacts.partner import PLANS
from project.contacts.requests import request_sample, request_webhook
from project.contacts.sample_data import FAULTY, GOOD

SCHEDULED_SECONDS = (60, 600, 3600)


class Command(BaseCommand):
    help = "Enqueue some real work for a first look at the dashboard; does nothing the second time."

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            if Import.objects.exists() or Webhook.objects.exists():
                self.stdout.write("There is work already: nothing was enqueued.")
                return
            for source in (GOOD, FAULTY):
                request_sample(source)
            for plan in PLANS:
                request_webhook(plan)
            for delay in SCHEDULED_SECONDS:
                request_webhook("well", delay)
        count = 2 + len(PLANS) + len(SCHEDULED_SECONDS)
        self.stdout.write(f"Enqueued {count} jobs: imports, and webhooks of which some will fail.")
