"""The registry of claims: slots, fates, and what a beat renews."""

import asyncio

import pytest

from jobqueue.worker.inflight import Fate, InFlightJobs, Stop
from tests.worker.parts import claim, hold


@pytest.mark.spec("S38", "S37", "S120")
async def test_a_slot_is_free_only_when_the_fate_is_known_and_the_handler_has_ended():
    for first, second in (("settle", "end"), ("end", "settle")):
        registry = InFlightJobs(2)
        inflight = hold(registry, trusted_from=0)
        acts = {"settle": lambda: registry.record_fate(inflight, Fate.COMPLETED)}  # noqa: B023
        acts["end"] = lambda: registry.end(inflight)  # noqa: B023
        acts[first]()
        assert (registry.free, len(registry)) == (1, 1)
        assert not registry.freed.is_set()
        acts[second]()
        assert (registry.free, len(registry)) == (2, 0)
        assert registry.freed.is_set()


@pytest.mark.spec("S154", "S102")
async def test_each_claim_is_in_exactly_one_count_however_often_it_is_settled():
    registry = InFlightJobs(5)
    for fate in Fate:
        inflight = hold(registry, trusted_from=0)
        registry.record_fate(inflight, fate)
        registry.record_fate(inflight, Fate.UNRECORDED)
        registry.end(inflight)
        registry.end(inflight)
    assert registry.counts == dict.fromkeys(Fate, 1)
    assert registry.claimed == 4


@pytest.mark.spec("S40", "A22")
async def test_two_claims_of_one_job_cannot_touch_each_other():
    registry = InFlightJobs(5)
    old, new = hold(registry, trusted_from=0, id=7), hold(registry, trusted_from=9, id=7)
    registry.record_fate(old, Fate.UNRECORDED)
    registry.end(old)
    assert registry.get(new.token) is new
    assert registry.renewable() == [new]


@pytest.mark.spec("S98", "S99", "A5")
async def test_what_was_given_up_or_lost_is_not_renewed():
    registry = InFlightJobs(5)
    kept, given_up, lost, ended = (hold(registry, trusted_from=0) for _ in range(4))
    registry.record_fate(given_up, Fate.UNRECORDED)
    lost.lost = True
    registry.end(ended)
    assert registry.renewable() == [kept, ended]  # its outcome is on its way: still ours


@pytest.mark.spec("S125", "S118")
async def test_repeated_stops_are_delivered_once_per_clean_up_and_the_first_reason_stays():
    registry = InFlightJobs(1)
    inflight, heard = hold(registry, trusted_from=0), []
    inflight.interrupt_by(lambda why, cleanup_seconds: heard.append(why))
    for moment in (0.0, 0.1, 4.9):
        inflight.request_stop(Stop.TIMEOUT, moment, 5.0)
    assert heard == [Stop.TIMEOUT]
    inflight.request_stop(Stop.CANCEL, 5.0, 5.0)
    assert heard == [Stop.TIMEOUT, Stop.CANCEL]
    assert (inflight.stop_reason, inflight.stop_requested_at, inflight._stop_sent_at) == (
        Stop.TIMEOUT,
        0.0,
        5.0,
    )
    assert inflight.control.cancelled


@pytest.mark.spec("S126")
async def test_a_handler_that_has_ended_is_not_asked_to_stop():
    registry = InFlightJobs(1)
    inflight, heard = hold(registry, trusted_from=0), []
    inflight.interrupt_by(lambda why, cleanup_seconds: heard.append(why))
    registry.end(inflight)
    inflight.request_stop(Stop.CANCEL, 0.0, 5.0)
    assert (heard, inflight.stop_reason) == ([], None)


@pytest.mark.spec("S39")
async def test_a_row_is_known_from_the_moment_it_is_added():
    registry = InFlightJobs(3)
    new = [registry.add(claim(id=number), 1.0) for number in range(3)]
    assert list(registry) == registry.renewable() == new
    assert registry.free == 0
    await asyncio.sleep(0)
    assert registry.claimed == 3
