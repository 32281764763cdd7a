"""The phases and their sums, with a registry and without a database; and a whole worker's end."""

import asyncio
import gc
import threading
import time
import warnings

import pytest

from jobqueue.states import Phase
from jobqueue.worker.inflight import Fate, InFlightJobs, Stop
from jobqueue.worker.shutdown import HELD_EXIT_SECONDS, HOLD_SECONDS, Shutdown
from tests.children import wait_until
from tests.processes import tempers as tasks
from tests.waiting import until
from tests.worker.parts import SHORT, StoppingExecutor, hold, settings, working


def now():
    return asyncio.get_running_loop().time()


class Bench:
    def __init__(self, config=SHORT):
        self.registry, self.log = InFlightJobs(10), []
        self.shutdown = Shutdown(
            config,
            on_begin=lambda: self.log.append("begin"),
            on_phase=lambda: self.log.append(self.shutdown.phase),
            on_end=lambda moment: self.log.append("end"),
        )
        self.executor = StoppingExecutor(now, config.cancel_seconds)


@pytest.mark.spec("S129", "S130", "S134")
async def test_whatever_asks_there_is_one_shutdown_and_the_rest_only_escalates():
    b = Bench()
    b.shutdown.request("service finisher ended", failed=True)
    b.shutdown.request("signal")
    b.shutdown.request("idle")
    assert b.log == ["end", "begin", Phase.DRAINING]
    assert b.shutdown.reason == "service finisher ended"
    assert b.shutdown.failed
    assert not b.shutdown.hurried.is_set()
    b.shutdown.signalled()
    assert b.shutdown.hurried.is_set()
    assert b.log == ["end", "begin", Phase.DRAINING]


@pytest.mark.spec("S146", "S151")
async def test_the_time_counts_from_the_signal_not_from_when_it_was_heard():
    b = Bench()
    b.shutdown.signalled(since=time.monotonic() - 1.5)
    assert b.shutdown.left(SHORT.drain_seconds) <= SHORT.drain_seconds - 1.5
    assert b.shutdown.end <= time.monotonic() + SHORT.exit_seconds - 1.5


@pytest.mark.spec("S137", "S138", "S210")
async def test_the_drain_ends_as_soon_as_nothing_is_held():
    b = Bench(settings(drain_seconds=60))
    inflight = [hold(b.registry, trusted_from=0) for _ in range(3)]
    b.shutdown.request("signal")
    draining = asyncio.create_task(b.shutdown.drain(b.registry, None))
    await asyncio.sleep(0)
    assert all(h.control.stopping for h in inflight)
    for h in inflight:
        assert not draining.done()
        b.registry.record_fate(h, Fate.COMPLETED)
        b.registry.end(h)
        await asyncio.sleep(0)
    await asyncio.wait_for(draining, 5)


@pytest.mark.spec("S50", "S203")
async def test_the_drain_waits_for_the_intake_but_not_for_ever():
    b = Bench(settings(drain_seconds=0.2))
    intake = asyncio.create_task(asyncio.Event().wait())
    b.shutdown.request("signal")
    await asyncio.wait_for(b.shutdown.drain(b.registry, intake), 5)
    assert not intake.done()
    intake.cancel()


@pytest.mark.spec("S129", "S139")
async def test_hurried_it_cancels_at_once_and_waits_for_the_clean_up():
    b = Bench(settings(drain_seconds=60, cancel_seconds=60))
    inflight = hold(b.registry, trusted_from=0)
    b.shutdown.request("signal")
    b.shutdown.signalled()
    await asyncio.wait_for(b.shutdown.drain(b.registry, None), 5)
    cancelling = asyncio.create_task(b.shutdown.cancel(b.registry, b.executor))
    await until(lambda: inflight.stop_reason is Stop.SHUTDOWN)
    assert b.shutdown.phase is Phase.CANCELLING
    b.registry.record_fate(inflight, Fate.INTERRUPTED)
    b.registry.end(inflight)
    await asyncio.wait_for(cancelling, 5)


@pytest.mark.spec("S136")
async def test_nothing_held_is_no_reason_for_a_phase():
    b = Bench()
    b.shutdown.request("signal")
    await b.shutdown.cancel(b.registry, b.executor)
    assert b.shutdown.phase is Phase.DRAINING


@pytest.mark.spec("S141", "S147")
def test_a_hold_outlives_the_process_and_its_last_guard():
    from jobqueue.worker.process.deadman import AFTER_DEADLINE_SECONDS

    assert HELD_EXIT_SECONDS + AFTER_DEADLINE_SECONDS < HOLD_SECONDS <= 2


@pytest.mark.spec("S154", "S213", "S214")
async def test_the_report_names_every_count():
    b = Bench()
    b.shutdown.request("signal")
    for fate in (Fate.COMPLETED, Fate.COMPLETED, Fate.RETURNED):
        inflight = hold(b.registry, trusted_from=0)
        b.registry.record_fate(inflight, fate)
        b.registry.end(inflight)
    report = b.shutdown.report(b.registry)
    assert report.pop("duration_seconds") >= 0
    assert report == {
        "completed": 2,
        "interrupted": 0,
        "returned": 1,
        "unrecorded": 0,
        "claimed": 3,
        "reason": "signal",
    }


# A whole worker in a thread of this process.


@pytest.fixture
def effects(tmp_path, monkeypatch):
    file = tmp_path / "effects"
    monkeypatch.setenv("EFFECTS", str(file))
    return lambda: file.read_text().splitlines() if file.exists() else []


@pytest.mark.spec("S199", "S204", "S146")
@pytest.mark.django_db(transaction=True)
def test_a_worker_leaves_no_task_no_thread_and_no_unseen_error(effects):
    before = {thread for thread in threading.enumerate() if thread.is_alive()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with working(settings(drain_seconds=0.2)) as worker:
            for _ in range(5):
                tasks.nap.enqueue(0.01)
                tasks.doze.enqueue(0.01)
                tasks.tidy_up.enqueue(0.05)
            wait_until(lambda: len(effects()) >= 15)
            unseen = []
            worker.watchdog.loop.set_exception_handler(lambda loop, facts: unseen.append(facts))
            left = []
            close = worker._close

            async def look_and_close():
                await close()
                left.extend(asyncio.all_tasks() - {asyncio.current_task()})

            worker._close = look_and_close
        gc.collect()
    assert worker.code == 0
    assert unseen == []
    assert [task.get_name() for task in left if "_end" not in task.get_name()] == []

    def gone():
        return [t for t in threading.enumerate() if t not in before] == []

    wait_until(gone)


@pytest.mark.spec("S200", "S125")
@pytest.mark.django_db(transaction=True)
def test_cancelled_fifty_times_while_its_outcome_is_written_an_outcome_is_recorded(effects):
    from django.db import connection, transaction

    from jobqueue.models import Attempt, Job

    with working(settings(drain_seconds=10)) as worker:
        job = int(tasks.nap.enqueue(0.3).id)
        wait_until(lambda: effects())
        (inflight,) = worker.registry
        with transaction.atomic(), connection.cursor() as cursor:
            # The row is locked: the outcome cannot be written until the lock goes.
            cursor.execute("SELECT FROM jobqueue_job WHERE id = %s FOR UPDATE", [job])
            wait_until(lambda: inflight.ended)
            for _ in range(50):
                worker.watchdog.loop.call_soon_threadsafe(inflight.task.cancel)
                worker.watchdog.loop.call_soon_threadsafe(
                    worker.components.executor.stop, inflight, Stop.SHUTDOWN
                )
            assert len(worker.registry) == 1
        wait_until(lambda: len(worker.registry) == 0)
        assert Job.objects.get(pk=job).state == "SUCCEEDED"
        assert Attempt.objects.get(job=job).outcome == "SUCCEEDED"
    assert worker.code == 0


@pytest.mark.spec("S143", "S153")
@pytest.mark.django_db(transaction=True)
def test_a_phase_that_fails_does_not_stop_the_train(effects, monkeypatch):
    from jobqueue.models import Job

    with working(settings(drain_seconds=5)) as worker:
        tasks.nap.enqueue(60)
        wait_until(lambda: effects())

        async def broken(*args):
            raise ZeroDivisionError

        monkeypatch.setattr(worker.shutdown, "drain", broken)
    assert worker.code == 1
    assert Job.objects.get().state == "READY"
    assert worker.registry.counts[Fate.INTERRUPTED] == 1


@pytest.mark.spec("S152", "S153")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("service", ["completer", "heartbeat", "listener", "claimer", "leader"])
def test_a_service_that_dies_drains_the_worker_with_an_error(service, effects):
    with working() as worker:
        loop = worker.watchdog.loop
        loop.call_soon_threadsafe(worker.services.get(service).cancel)
        wait_until(lambda: worker.shutdown.requested.is_set())
    assert worker.code == 1
    assert service in worker.shutdown.reason
