"""One owner for each task: services that end, races that leave nothing behind."""

import asyncio

import pytest

from jobqueue.worker.services import Services, within
from jobqueue.worker.shutdown import _first
from tests.events import captured
from tests.waiting import until


async def forever():
    await asyncio.Event().wait()


async def broken():
    raise ZeroDivisionError


async def nothing():
    pass


@pytest.mark.spec("S152", "S204", "D85")
@pytest.mark.parametrize(("service", "error"), [(nothing, None), (broken, ZeroDivisionError)])
async def test_a_service_that_ends_unasked_is_logged(service, error):
    ended = []
    services = Services(lambda name, what: ended.append((name, what and type(what))))
    services.start("listener", service())
    await until(lambda: ended)
    assert ended == [("listener", error)]
    await services.cancel_all(5)


@pytest.mark.spec("S152", "S143")
async def test_one_that_was_expected_to_end_is_not_but_its_error_is_loud():
    ended = []
    services = Services(lambda name, what: ended.append(name))
    services.expect("claimer", "leader")
    with captured() as logs:
        services.start("claimer", nothing())
        services.start("leader", broken())
        await until(lambda: logs)
        await services.cancel_all(5)
    assert ended == []
    assert [log["event"] for log in logs] == ["service_stop_failed"]


@pytest.mark.spec("S198", "S199", "S204")
async def test_all_services_are_cancelled_at_once_and_awaited():
    services = Services(lambda name, what: None)
    tasks = [services.start(str(number), forever()) for number in range(5)]
    await asyncio.sleep(0)
    await services.cancel_all(5)
    assert all(task.cancelled() for task in tasks)


@pytest.mark.spec("S198", "S149")
async def test_a_service_that_ignores_its_cancellation_costs_its_bound_and_is_named():
    stop = asyncio.Event()

    async def stubborn():
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    services = Services(lambda name, what: None)
    task = services.start("stubborn", stubborn())
    await asyncio.sleep(0)
    with captured() as logs:
        await services.cancel_all(0.1)
    assert logs[0]["tasks"] == ["stubborn"]
    stop.set()
    await task


@pytest.mark.spec("S143", "S149", "S199")
async def test_a_step_that_fails_or_hangs_does_not_stop_the_next():
    before = asyncio.all_tasks()
    with captured() as logs:
        assert await within(5, "good", nothing())
        assert not await within(5, "bad", broken())
        assert not await within(0.05, "slow", forever())
    assert [log["event"] for log in logs] == ["shutdown_step_failed", "shutdown_step_skipped"]
    assert asyncio.all_tasks() == before


@pytest.mark.spec("S199")
async def test_the_losers_of_a_race_are_ended_also_when_it_is_cancelled():
    before = asyncio.all_tasks()
    await _first(0.05, forever(), forever())
    await _first(5, nothing(), forever())
    race = asyncio.create_task(_first(60, forever(), forever()))
    await asyncio.sleep(0.01)
    race.cancel()
    await asyncio.wait({race})
    assert race.cancelled()
    assert asyncio.all_tasks() == before
