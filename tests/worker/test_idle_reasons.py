"""Why a worker claims nothing: found at each beat, logged when it lasts."""

from types import SimpleNamespace

import pytest

from jobqueue.states import IdleReason
from jobqueue.worker import idle_reasons
from jobqueue.worker.idle_reasons import IdleReasons
from tests.events import captured


class Registry(list):
    """Slots and the claims that fill them, as InFlightJobs shows them."""

    claimed, concurrency = 0, 2

    @property
    def free(self):
        return self.concurrency - len(self)


class Receivers:
    """The threads of Django's receivers."""

    stacks = "where it hangs"

    def __init__(self, situation):
        self.situation = situation

    @property
    def is_behind(self):
        return self.situation.is_behind

    def check(self):
        """There is nothing to log here."""


class Situation:
    """What the worker's parts say; a test changes it."""

    def __init__(self, clock):
        self.clock, self.registry = clock, Registry()
        self.is_behind = self.is_away = self.is_spent = False
        self.is_running, self.lost = True, 0
        self.reasons = IdleReasons(
            self.registry,
            Receivers(self),
            SimpleNamespace(concerns=lambda service: service == "claim" and self.is_away),
            lost_slots=lambda: self.lost,
            is_spent=lambda: self.is_spent,
            is_running=lambda: self.is_running,
        )

    def after(self, seconds):
        self.clock.now += seconds
        return self.reasons.check()


@pytest.fixture
def situation(monkeypatch):
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(idle_reasons, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return Situation(clock)


def fill(situation, *, ended):
    situation.registry += [SimpleNamespace(ended=ended)] * situation.registry.concurrency


def behind(situation):
    situation.is_behind = True


def away(situation):
    situation.is_away = True


def lost(situation):
    situation.lost = 2


def unwritten(situation):
    fill(situation, ended=True)


def spent(situation):
    situation.is_spent = True


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (behind, IdleReason.SIGNALS),
        (away, IdleReason.OUTAGE),
        (lost, IdleReason.ANSWERS),
        (unwritten, IdleReason.OUTCOMES),
        (spent, IdleReason.MAX_JOBS),
    ],
)
def test_each_reason_is_found_and_a_lasting_one_is_logged_until_it_ends(situation, happens, reason):
    assert situation.after(2) == ""
    happens(situation)
    with captured() as logs:
        assert situation.after(2) == reason
        assert situation.after(5) == reason
        assert logs == []
        assert situation.after(6) == reason
        assert situation.after(30) == reason
        (line,) = logs
        assert (line["event"], line["reason"], line["seconds"]) == ("worker_idle", reason, 11.0)
        assert bool(line["stack"]) == (reason is IdleReason.SIGNALS)
        situation.is_running = False
        assert situation.after(1) == ""
    assert [line["event"] for line in logs] == ["worker_idle", "worker_busy"]


def test_full_slots_are_work_and_no_reason(situation):
    fill(situation, ended=False)
    assert situation.after(60) == ""


def test_a_worker_that_claims_has_no_reason(situation):
    away(situation)
    for _ in range(5):
        situation.registry.claimed += 1
        assert situation.after(0.5) == ""
