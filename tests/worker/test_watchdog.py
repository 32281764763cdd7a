"""The thread outside the loop, in this process; what ends a process is shown in processes/."""

import asyncio
import contextlib
import ctypes
import os
import signal
import threading
import time

import pytest

from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.process.deadman import DeadMan
from jobqueue.worker.process.watchdog import BURST_MAX_SECONDS, BURST_SECONDS, Watchdog
from tests.events import captured
from tests.waiting import until
from tests.worker.parts import SHORT, hold, settings


def make(settings, registry):
    return Watchdog(settings, registry, on_signal=lambda number: None, on_block=lambda *facts: None)


@pytest.fixture
def watchdog(monkeypatch):
    made = make(settings(lease_seconds=1.2), InFlightJobs(5))
    made.left = []
    monkeypatch.setattr(made, "exit_now", made.left.append)
    return made


@pytest.mark.spec("S129")
def test_the_first_signal_drains_the_second_cancels_the_third_leaves(watchdog):
    assert watchdog._counts(10.0)
    assert watchdog.first_stop_at == 10.0
    assert watchdog.deadline == 10.0 + watchdog.settings.exit_seconds
    assert watchdog._counts(10.01)
    assert watchdog.left == []
    moment = 10.01
    for _ in range(18):  # one burst with the second
        moment += BURST_SECONDS / 2
        assert not watchdog._counts(moment)
    assert watchdog.left == []
    watchdog._counts(moment + 2 * BURST_SECONDS)
    assert watchdog.left == ["third signal"]
    assert watchdog.deadline == 10.0 + watchdog.settings.exit_seconds


@pytest.mark.spec("S129")
def test_a_burst_does_not_last_for_ever(watchdog):
    """Ctrl-C held down: the key repeats without a pause."""
    moment = 10.0
    while not watchdog.left:
        watchdog._counts(moment)
        moment += BURST_SECONDS / 3
    assert 10.0 + BURST_MAX_SECONDS < moment < 10.0 + BURST_MAX_SECONDS + 2 * BURST_SECONDS


@pytest.mark.spec("S129", "S130")
def test_a_deadline_only_ever_comes_closer(watchdog):
    for moment, expected in ((50.0, 50.0), (60.0, 50.0), (40.0, 40.0)):
        watchdog.expect_end(moment)
        assert watchdog.deadline == expected


@pytest.mark.spec("S129")
async def test_signals_from_before_the_loop_reach_it(watchdog):
    heard = []
    watchdog.on_signal = heard.append
    watchdog._pass_on(signal.SIGTERM)
    watchdog._pass_on(signal.SIGHUP)
    assert heard == []
    watchdog.watch(asyncio.get_running_loop())
    assert heard == [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.spec("S106", "S147")
async def test_a_blocked_loop_is_logged_with_its_culprit_and_its_return(watchdog):
    blocks = []
    watchdog.on_block = lambda inflight, stack, seconds: blocks.append((inflight.claim.id, stack))
    inflight = hold(watchdog.registry, trusted_from=time.monotonic() + 60, id=8)
    lag = watchdog.lag_seconds

    async def blocking():
        time.sleep(4 * lag)  # noqa: ASYNC251

    with captured() as logs, watchdog.running(signals=False):
        watchdog.watch(asyncio.get_running_loop())
        inflight.task = asyncio.create_task(blocking())
        await inflight.task
        await until(lambda: blocks)
    logged = next(log for log in logs if log["event"] == "event_loop_blocked")
    assert logged["job"] == 8
    assert "time.sleep(4 * lag)" in logged["stack"]
    assert blocks[0][0] == 8
    assert watchdog.left == []


@pytest.mark.spec("S106")
async def test_a_block_in_a_handlers_own_task_is_that_handlers(watchdog):
    inflight = hold(watchdog.registry, trusted_from=time.monotonic() + 60, id=9)
    found = []

    async def child():
        def look():
            found.append(watchdog._find_culprit())

        watchdog.loop = asyncio.get_running_loop()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    inflight.children = {asyncio.create_task(child())}
    await asyncio.wait(inflight.children)
    assert found == [inflight]


@pytest.mark.spec("S104", "S106")
async def test_blocked_beyond_the_trust_it_leaves(watchdog):
    hold(watchdog.registry, trusted_from=time.monotonic())
    with watchdog.running(signals=False):
        watchdog.watch(asyncio.get_running_loop())
        end = time.monotonic() + 10
        while not watchdog.left and time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251
    why = "the event loop is blocked and job 1 outlives the trust in its lease"
    assert watchdog.left[0] == why


@pytest.mark.spec("S104", "S150")
def test_a_handler_that_outlives_the_trust_ends_the_process(watchdog):
    """Whatever it was asked, and however often: that prolongs nothing."""
    trust, now = watchdog.settings.trust_seconds, time.monotonic()
    inflight = hold(watchdog.registry, trusted_from=now - trust + 0.5, id=3)
    hold(watchdog.registry, trusted_from=now, id=4)
    assert watchdog._first_to_lapse() == (3, pytest.approx(now + 0.5))
    watchdog._enforce(now + 0.4)
    assert watchdog.left == []
    inflight.stop_reason, inflight.stop_requested_at = "lease", now + 0.4
    watchdog._enforce(now + 0.5)
    assert watchdog.left == ["job 3 outlives the trust in its lease"]
    watchdog.registry.end(inflight)
    assert watchdog._first_to_lapse() == (4, pytest.approx(now + trust))


@pytest.mark.spec("S53", "S150")
@pytest.mark.parametrize(("lapsed", "grace"), [(0.1, True), (-0.1, False)])
def test_only_a_freeze_that_outlasted_the_lease_gives_time_to_clean_up(watchdog, lapsed, grace):
    end = time.monotonic() - lapsed
    hold(watchdog.registry, trusted_from=end - watchdog.settings.trust_seconds)
    watchdog._thawed_at = end + lapsed
    _, leaves = watchdog._first_to_lapse()
    cleaned = watchdog._thawed_at + watchdog.settings.cancel_seconds
    assert leaves == pytest.approx(cleaned if grace else end)


@pytest.mark.spec("S104", "S150")
async def test_a_c_call_that_holds_the_interpreter_past_the_lease_gives_none(watchdog):
    sleep = ctypes.PyDLL(None).usleep  # a PyDLL keeps the interpreter while it waits
    hold(watchdog.registry, trusted_from=time.monotonic(), id=6)
    with captured() as logs, watchdog.running(signals=False):
        watchdog.watch(asyncio.get_running_loop())
        sleep(int(1_000_000 * (watchdog.settings.lease_seconds + 2 * watchdog.lag_seconds)))
        await until(lambda: watchdog.left)
        await until(lambda: [log for log in logs if log["event"] == "interpreter_held"])
    assert watchdog.left[0] == "job 6 outlives the trust in its lease"
    assert watchdog._thawed_at < 0


@pytest.mark.spec("S53", "S147")
async def test_a_frozen_process_is_not_taken_for_a_blocked_loop(watchdog, monkeypatch):
    """Thawed, the watchdog finds everything late, itself too: the loop gets its chance, and
    handlers get their time to clean up."""
    hold(watchdog.registry, trusted_from=time.monotonic() - 100)
    watchdog.loop = asyncio.get_running_loop()
    watchdog._answered = time.monotonic() - 50
    monkeypatch.setattr(watchdog, "_read_signals", lambda seconds: time.sleep(seconds + 1))
    watchdog._turn()
    assert watchdog._blocked_since is None
    assert watchdog.left == []


@pytest.mark.spec("S147", "S148")
async def test_a_log_that_fails_does_not_end_the_watch(watchdog, monkeypatch):
    calls = []

    def broken(*args):
        calls.append(args)
        raise OSError("no stderr")

    monkeypatch.setattr(watchdog, "_check_loop", broken)
    with watchdog.running(signals=False):
        watchdog.watch(asyncio.get_running_loop())
        await until(lambda: len(calls) >= 2)


@pytest.mark.spec("S133")
def test_signals_are_put_back_as_they_were():
    heard = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in heard]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    with make(SHORT, InFlightJobs(1)).running(signals=True):
        assert [signal.getsignal(number) for number in heard] != before
    assert [signal.getsignal(number) for number in heard] == before
    assert signal.set_wakeup_fd(-1) == wakeup
    signal.set_wakeup_fd(wakeup)


@pytest.mark.spec("S129", "S133")
async def test_a_signal_is_heard_by_the_thread_and_handled_on_the_loop():
    watchdog, heard = make(SHORT, InFlightJobs(1)), []
    watchdog.on_signal = lambda number: heard.append((number, threading.current_thread().name))
    with watchdog.running(signals=True):
        watchdog.watch(asyncio.get_running_loop())
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: heard)
    assert heard == [(signal.SIGHUP, threading.current_thread().name)]


@pytest.mark.spec("S148")
def test_a_full_pipe_at_stderr_holds_up_nothing(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr("jobqueue.worker.process.deadman._stderr", lambda: writer)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    start = time.monotonic()
    with DeadMan(60.0) as dead_man:
        dead_man.write("y" * 100_000)
        assert dead_man.descriptor != writer
        assert not os.get_blocking(dead_man.descriptor)
        assert os.get_blocking(writer)
    assert time.monotonic() - start < 5
    os.close(reader)
    os.close(writer)
