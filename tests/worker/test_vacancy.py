"""A fleet without a leader says so."""

import pytest
import structlog

from jobqueue.worker import vacancy
from jobqueue.worker.vacancy import Vacancy


@pytest.mark.spec("S195", "S178")
def test_that_nobody_leads_is_said_once_after_a_while_and_so_is_the_end_of_it(monkeypatch):
    now = 100.0
    monkeypatch.setattr(vacancy.time, "monotonic", lambda: now)
    seen = Vacancy(lease_seconds=15)
    with structlog.testing.capture_logs() as entries:
        for moment, vacant in [
            (100, True),
            (150, True),
            (155, False),  # a change of leaders
            (160, True),
            (219, True),
            (221, True),
            (300, True),
            (301, False),
            (302, False),
        ]:
            now = float(moment)
            seen.seen(vacant=vacant)
    assert [(entry["event"], entry.get("seconds")) for entry in entries] == [
        ("nobody_leads", 61),
        ("somebody_leads_again", None),
    ]
