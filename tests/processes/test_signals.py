"""What each signal does to a worker with work in hand."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jobqueue.models import Job
from tests.children import wait_until
from tests.processes import tempers as tasks
from tests.processes.fleet import Fleet, Running, adds_up, make_effect_table, outcomes, states

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


@pytest.mark.spec("S129", "D9")
def test_a_second_signal_within_30_ms_cancels_and_loses_nothing(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=60)
    tasks.nap.enqueue(600)
    wait_until(lambda: fleet.count("begin"))
    worker.send(signal.SIGTERM)
    time.sleep(0.03)
    assert worker.stop() == 0
    assert (states(), outcomes()) == ({"READY": 1}, {"INTERRUPTED": 1})


@pytest.mark.spec("S129", "D9")
def test_twenty_signals_in_a_burst_cancel_and_lose_nothing(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=60)
    for _ in range(5):
        tasks.tidy_up.enqueue(0.2)
    wait_until(lambda: fleet.count("begin") == 5)
    for number in (signal.SIGTERM, signal.SIGINT) * 10:
        worker.send(number)
        time.sleep(0.005)
    assert worker.ended(30) == 0
    assert states() == {"READY": 5}
    assert (worker.report["interrupted"], fleet.count("tidied")) == (5, 5)
    assert "Traceback" not in worker.text()


@pytest.mark.spec("S131", "S197d")
def test_workers_that_are_starting_outlive_hup_and_usr2(fleet: Fleet):
    supervisor = fleet.start("--processes", "2", wait=False)
    wait_until(lambda: len(supervisor.events("child_started")) == 2)
    while len(supervisor.events("worker_started")) < 2:
        supervisor.send(signal.SIGHUP)
        supervisor.send(signal.SIGUSR2)
        time.sleep(0.02)
    assert supervisor.stop() == 0
    assert [event["code"] for event in supervisor.events("child_exited")] == [0, 0]


@pytest.mark.spec("S131")
def test_ten_times_hup_under_load_and_no_job_fails(fleet: Fleet):
    make_effect_table()
    worker = fleet.start("--concurrency", "10")
    for number in range(400):
        task = (tasks.nap, tasks.doze, tasks.write_row)[number % 3]
        task.enqueue(0.03)
    for done in range(10):
        wait_until(lambda done=done: states()["SUCCEEDED"] > done * 30)
        worker.send(signal.SIGHUP)
    wait_until(lambda: states() == {"SUCCEEDED": 400}, 60)
    assert outcomes() == {"SUCCEEDED": 400}
    assert len(worker.events("reconnect_started")) >= 5
    assert not worker.events("service_failed")
    assert worker.stop() == 0
    assert worker.report["completed"] == 400


@pytest.mark.spec("S131")
def test_hup_is_ignored_while_stopping(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=60)
    tasks.nap.enqueue(2)
    wait_until(lambda: fleet.count("begin"))
    worker.send(signal.SIGTERM)
    worker.wait_for("shutdown_phase", phase="DRAINING")
    worker.send(signal.SIGHUP)
    assert worker.ended(30) == 0
    assert not worker.events("reconnect_started")
    assert states() == {"SUCCEEDED": 1}


@pytest.mark.spec("S132")
def test_usr2_writes_the_stacks_and_never_what_they_work_on(fleet: Fleet):
    worker = fleet.start()
    tasks.keep_secret.enqueue("hunter2")
    tasks.sleep_deep.enqueue(2.5)
    wait_until(lambda: fleet.count("begin") == 2)
    worker.send(signal.SIGUSR2)
    wait_until(lambda: "keep_secret" in worker.text() and "sleep_deep" in worker.text())
    wait_until(lambda: "Thread watchdog" in worker.text())
    assert "hunter2" not in worker.text()
    assert "half-way" not in worker.text()
    wait_until(lambda: states()["SUCCEEDED"] == 1)
    assert worker.stop() == 0


@pytest.mark.spec("S129", "D11")
def test_usr1_is_ignored(fleet: Fleet):
    worker = fleet.start()
    worker.send(signal.SIGUSR1)
    tasks.nap.enqueue(0)
    wait_until(lambda: states() == {"SUCCEEDED": 1})
    assert worker.stop() == 0


@pytest.mark.spec("S129", "S146")
def test_a_signal_before_the_worker_serves_is_not_lost(fleet: Fleet):
    """Wherever in its start it is hit: it leaves by itself, and soon."""
    for delay in (0.0, 0.03, 0.1):
        worker = fleet.start(wait=False, DRAIN_SECONDS=30)
        wait_until(lambda pid=worker.pid: hears(pid), every=0.001)
        time.sleep(delay)
        assert worker.stop(seconds=15) == 0


def hears(pid):
    """Whether the process catches TERM by now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt")).split()[1]
    return int(caught, 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.spec("S133")
def test_a_forked_child_that_is_ended_by_a_signal_does_not_stop_its_worker(fleet: Fleet):
    worker = fleet.start()
    tasks.fork.enqueue()
    wait_until(lambda: states() == {"SUCCEEDED": 1})
    assert fleet.count("child-15") == 1
    tasks.nap.enqueue(0)
    wait_until(lambda: states() == {"SUCCEEDED": 2})
    assert worker.process.poll() is None
    assert not worker.phases()
    assert worker.stop() == 0


@pytest.mark.spec("S129", "D12")
def test_ctrl_c_while_a_handler_waits_for_its_program(fleet: Fleet):
    """The terminal sends INT to the whole group: the program dies, which is the job's error."""
    worker = fleet.start(DRAIN_SECONDS=20)
    tasks.child_program.enqueue()
    wait_until(lambda: fleet.count("begin"))
    wait_until(lambda: children_of(worker.pid))
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.ended(30) == 0
    row = Job.objects.get()
    assert (row.state, row.failures) == ("SCHEDULED", 1)
    assert "CalledProcessError" in row.last_error
    assert adds_up(worker.report)


def children_of(pid):
    """The processes that any thread of this one has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


@pytest.mark.spec("S129", "D10")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_as_the_first_process_of_a_container_it_drains_and_leaves(fleet: Fleet, monkeypatch):
    probe = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no new pid namespace")
    popen = subprocess.Popen

    def contained(command, **options):
        return popen(["unshare", "--pid", "--fork", "--mount-proc", *command], **options)

    monkeypatch.setattr("tests.children.subprocess.Popen", contained)
    worker = fleet.start(DRAIN_SECONDS=20)
    assert worker.events("worker_started")[0]["pid"] == 1
    tasks.nap.enqueue(2)
    wait_until(lambda: fleet.count("begin"))
    (inner,) = children_of(worker.pid)
    os.kill(inner, signal.SIGTERM)
    assert worker.ended(30) == 0
    assert states() == {"SUCCEEDED": 1}
    assert isinstance(worker, Running)
