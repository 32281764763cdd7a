"""An operator in the admin, as a process: cancels all waiting jobs of a queue by a bulk order.

Argument: the queue. Prints the order's state and how many jobs it changed.
"""

import sys
import uuid

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.test import Client  # noqa: E402
from django.utils import timezone  # noqa: E402

from jobqueue.models import BulkOrder  # noqa: E402

admin = Client(headers={"host": "localhost"})
admin.force_login(User.objects.create_superuser("root"))
form = {
    "scope": "all",
    "filter": f"state=READY&queue={sys.argv[1]}",
    "confirmed": "1",
    "nonce": uuid.uuid4().hex,
    "as_of": timezone.now().isoformat(),
}
answer = admin.post("/admin/jobqueue/job/act/cancel/", form)
assert answer.status_code == 302, (answer.status_code, answer.content)
order = BulkOrder.objects.get()
while order.state == "RUNNING":
    assert admin.post(f"/admin/jobqueue/bulkorder/{order.pk}/drive/").status_code < 400
    order.refresh_from_db()
print(order.state, order.changed)
