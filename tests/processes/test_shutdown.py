"""The drain of a real worker by real signals: readings, phases, bounds, accounting."""

import signal
import time

import pytest

from jobqueue import operations
from jobqueue.models import Attempt, Job
from tests.children import wait_until
from tests.processes import tempers as tasks
from tests.processes.fleet import SLACK_SECONDS, Fleet, adds_up, outcomes, states

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

# Measured from the signal, by the process itself and so without the time of its exit.
QUICK_SECONDS = 1.5


def enqueue(number, task, *args):
    return [task.enqueue(*args).id for _ in range(number)]


def check_accounts(worker, fleet, *, total):
    """Nothing is lost, nobody is charged, and both books say the same."""
    report = worker.report
    assert adds_up(report)
    assert report["unrecorded"] == 0
    found = states()
    assert found.total() == total
    assert found["RUNNING"] == 0
    assert not Job.objects.exclude(failures=0).exists()
    assert report["completed"] == found["SUCCEEDED"]
    assert report["interrupted"] == outcomes()["INTERRUPTED"]
    assert fleet.count("end") == found["SUCCEEDED"]


@pytest.mark.spec("S216", "S134", "S138", "S154", "S155", "S209", "S210", "S211", "S213", "A3")
@pytest.mark.parametrize("grace", [0.2, 2.0])
def test_short_jobs_all_end_in_the_drain_and_the_backlog_is_not_touched(fleet: Fleet, grace):
    worker = fleet.start("--concurrency", "10", "--no-leader", DRAIN_SECONDS=grace)
    enqueue(300, tasks.nap, 0.05)
    wait_until(lambda: fleet.count("begin") >= 20, every=0.005)
    assert worker.stop() == 0
    check_accounts(worker, fleet, total=300)
    assert worker.report["returned"] <= 10
    assert worker.report["duration_seconds"] < grace + QUICK_SECONDS
    assert states()["READY"] + states()["SUCCEEDED"] == 300


@pytest.mark.spec("S216", "S139", "S140", "S155", "S202", "A7", "D3")
def test_long_jobs_are_interrupted_after_the_grace_and_go_back_uncharged(fleet: Fleet):
    worker = fleet.start("--concurrency", "10", "--no-leader", DRAIN_SECONDS=0.2)
    enqueue(300, tasks.nap, 20)
    order = list(Job.objects.order_by("id").values_list("id", "run_at"))
    wait_until(lambda: fleet.count("begin") == 10)
    assert worker.stop() == 0
    check_accounts(worker, fleet, total=300)
    assert (worker.report["claimed"], worker.report["interrupted"]) == (10, 10)
    assert worker.report["duration_seconds"] < 0.2 + QUICK_SECONDS
    assert states() == {"READY": 300}
    assert list(Job.objects.order_by("id").values_list("id", "run_at")) == order
    assert Job.objects.filter(interruptions=1, attempts=1, reason="interrupted").count() == 10


@pytest.mark.spec("S211", "S140", "S155")
def test_another_worker_gets_at_once_what_a_leaving_one_gives_back(fleet: Fleet):
    """Not by its poll, which is a minute away."""
    worker = fleet.start("--no-leader", DRAIN_SECONDS=0.2, POLL_SECONDS=60)
    enqueue(3, tasks.nap, 600)
    wait_until(lambda: fleet.count("begin") == 3)
    other = fleet.start("--no-leader", DRAIN_SECONDS=0, POLL_SECONDS=60)
    wait_until(lambda: other.row().wake == "notified")
    assert worker.stop() == 0
    assert worker.report["interrupted"] == 3
    wait_until(lambda: fleet.count("begin") == 6, 30)
    assert other.stop() == 0


@pytest.mark.spec("S216", "S160")
def test_work_until_a_limit_interrupts_what_is_running_then(fleet: Fleet):
    enqueue(300, tasks.nap, 0.05)
    limit = ("--until-idle", "--max-runtime", "0.5")
    worker = fleet.start("--concurrency", "10", "--no-leader", *limit, DRAIN_SECONDS=0, wait=False)
    assert worker.ended(40) == 4
    check_accounts(worker, fleet, total=300)
    assert worker.report["reason"] == "max runtime"
    assert 0 < worker.report["completed"] < 300


@pytest.mark.spec("S216", "S160")
def test_work_until_idle_ends_with_everything_done(fleet: Fleet):
    enqueue(300, tasks.nap, 0.05)
    worker = fleet.start("--concurrency", "10", "--until-idle", wait=False)
    assert worker.ended(60) == 0
    check_accounts(worker, fleet, total=300)
    assert worker.report["completed"] == 300


@pytest.mark.spec("S136", "S129", "S153")
def test_every_phase_is_shown_before_its_work_and_the_report_is_kept(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=1, CANCEL_SECONDS=2, HEARTBEAT_SECONDS=0.2, LEASE_SECONDS=4)
    tasks.tidy_up.enqueue(1.5)
    wait_until(lambda: fleet.count("begin"))
    row = worker.row()
    assert row.phase == "RUNNING"
    worker.send(signal.SIGTERM)
    seen = set()

    def all_seen():
        row.refresh_from_db()
        seen.add(row.phase)
        return {"DRAINING", "CANCELLING"} <= seen

    wait_until(all_seen, every=0.005)
    assert worker.ended(30) == 0
    assert worker.phases() == ["DRAINING", "CANCELLING", "RELEASING", "STOPPED"]
    row.refresh_from_db()
    assert row.phase == "STOPPED"
    assert row.stop_report["interrupted"] == 1
    kept = {key: worker.report[key] for key in row.stop_report}
    assert kept == row.stop_report
    assert fleet.count("tidied") == 1


@pytest.mark.spec("S129", "S138", "S139")
def test_the_second_signal_cancels_at_once(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=60)
    tasks.nap.enqueue(600)
    wait_until(lambda: fleet.count("begin"))
    worker.send(signal.SIGTERM)
    worker.wait_for("shutdown_phase", phase="DRAINING")
    assert worker.stop(signal.SIGINT) == 0
    assert worker.report["interrupted"] == 1
    assert worker.report["duration_seconds"] < 20


@pytest.mark.spec("S129", "S146")
def test_the_third_signal_leaves_at_once(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=60, CANCEL_SECONDS=15, LEASE_SECONDS=60)
    tasks.ignore_everything.enqueue()
    wait_until(lambda: fleet.count("begin"))
    worker.send(signal.SIGTERM)
    worker.wait_for("shutdown_phase", phase="DRAINING")
    worker.send(signal.SIGTERM)
    worker.wait_for("shutdown_phase", phase="CANCELLING")
    second = time.monotonic()
    wait_until(lambda: time.monotonic() - second > 0.3)  # not one burst with the third
    start = time.monotonic()
    assert worker.stop() == 5
    assert time.monotonic() - start < SLACK_SECONDS
    assert "third signal" in worker.text()
    assert "ignore_everything" in worker.text()


STUBBORN = [
    pytest.param(tasks.ignore_everything, (), "ignore_everything", id="async"),
    pytest.param(tasks.sleep_deep, (600,), "time.sleep", id="sync"),
]


@pytest.mark.spec("S141", "S144", "S146", "S150", "S153", "S198", "A8", "D5", "D81")
@pytest.mark.parametrize(("task", "args", "place"), STUBBORN)
def test_a_handler_that_does_not_end_is_released_with_a_hold(fleet: Fleet, task, args, place):
    worker = fleet.start(DRAIN_SECONDS=0.5, CANCEL_SECONDS=0.5)
    (job,) = enqueue(1, task, *args)
    wait_until(lambda: fleet.count("begin"))
    start = time.monotonic()
    assert worker.stop() == 5
    assert time.monotonic() - start < 0.5 + 0.5 + 2 + SLACK_SECONDS
    assert place in worker.text()
    row = Job.objects.get(pk=job)
    assert (row.state, row.failures) == ("SCHEDULED", 0)
    assert row.reason == "held until its old process is gone"
    written = Attempt.objects.get(job=job)
    assert written.outcome == "INTERRUPTED"
    assert 0 < (row.hold_until - written.finished_at).total_seconds() <= 2
    assert worker.report["interrupted"] == 1
    assert adds_up(worker.report)
    other = fleet.start()
    wait_until(lambda: fleet.count("begin") == 2)
    assert Job.objects.get(pk=job).claimed_at >= row.hold_until
    other.process.kill()


@pytest.mark.spec("S141", "S144", "D4")
def test_fifty_blocked_functions_are_given_back_before_the_platform_kills(fleet: Fleet):
    worker = fleet.start("--concurrency", "50", "--no-leader", DRAIN_SECONDS=1, CANCEL_SECONDS=0.5)
    enqueue(50, tasks.sleep_deep, 600)
    wait_until(lambda: fleet.count("begin") == 50)
    assert worker.stop() == 5
    assert worker.report["interrupted"] == 50
    assert adds_up(worker.report)
    assert states() == {"SCHEDULED": 50}
    assert not Job.objects.exclude(failures=0).exists()
    for row in Job.objects.all():
        written = Attempt.objects.get(job=row)
        assert 0 < (row.hold_until - written.finished_at).total_seconds() <= 2


@pytest.mark.spec("S146", "S150")
@pytest.mark.parametrize("task", [tasks.leave_thread, tasks.leave_pool])
def test_a_thread_that_a_job_left_behind_does_not_hold_the_process(fleet: Fleet, task):
    worker = fleet.start(DRAIN_SECONDS=1, CANCEL_SECONDS=0.5)
    task.enqueue(600)
    wait_until(lambda: states()["SUCCEEDED"])
    start = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - start < SLACK_SECONDS + 2
    assert worker.report["completed"] == 1


@pytest.mark.spec("S141", "S146")
def test_a_job_whose_call_in_the_default_executor_runs_on_has_not_ended(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=0.3, CANCEL_SECONDS=0.5)
    job = tasks.leave_call.enqueue(600).id
    wait_until(lambda: fleet.count("end"))
    assert worker.stop() == 5
    (left,) = worker.events("handler_abandoned")
    assert left["job"] == int(job)
    assert "handler-call-1" in left["stack"]
    row = Job.objects.get(pk=job)
    assert (row.state, row.interruptions) == ("SCHEDULED", 1)
    assert row.hold_until is not None


@pytest.mark.spec("S146", "S148")
def test_what_hangs_at_the_interpreters_end_is_bounded_too(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=1)
    tasks.hang_at_exit.enqueue()
    wait_until(lambda: states()["SUCCEEDED"])
    start = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - start < 5 + SLACK_SECONDS
    assert worker.report["exit_code"] == 0


@pytest.mark.spec("S147", "S148")
def test_a_handler_that_holds_the_interpreter_during_the_drain_is_ended_from_c(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=1, CANCEL_SECONDS=0.5)
    tasks.hold_interpreter.enqueue(when_stopping=True)
    wait_until(lambda: fleet.count("begin"))
    start = time.monotonic()
    assert worker.stop() == 1
    assert time.monotonic() - start < 1 + 0.5 + 2 + SLACK_SECONDS
    assert "hold_interpreter" in worker.text()


@pytest.mark.long
@pytest.mark.spec("S147")
def test_a_handler_that_holds_the_interpreter_is_ended_though_no_signal_can_be_heard(fleet: Fleet):
    worker = fleet.start(LEASE_SECONDS=1.5, DRAIN_SECONDS=0.2, CANCEL_SECONDS=0.2)
    tasks.hold_interpreter.enqueue(when_stopping=False)
    wait_until(lambda: fleet.count("begin"))
    assert worker.stop(seconds=90) == 1  # a minute behind the lease: it might be frozen
    assert "hold_interpreter" in worker.text()


@pytest.mark.spec("S157", "S135", "S156", "D6")
def test_an_idle_worker_stops_at_once_leader_or_not(fleet: Fleet):
    leader = fleet.start(POLL_SECONDS=60)
    leader.wait_for("leader_elected")
    follower = fleet.start("--no-leader", POLL_SECONDS=60)
    for worker in (follower, leader):
        start = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - start < 2 + SLACK_SECONDS
        assert worker.report["duration_seconds"] < 2
        assert worker.report["claimed"] == 0
    assert leader.events("leader_resigned")[0]["given_back"]


@pytest.mark.spec("S108", "S104", "D1")
def test_leases_are_renewed_during_the_drain(fleet: Fleet):
    worker = fleet.start(LEASE_SECONDS=1.5, CANCEL_SECONDS=0.3, DRAIN_SECONDS=60)
    (job,) = enqueue(1, tasks.nap, 3.5)
    wait_until(lambda: fleet.count("begin"))
    fleet.start("--concurrency", "2", LEASE_SECONDS=1.5, CANCEL_SECONDS=0.3)
    assert worker.stop() == 0
    row = Job.objects.get(pk=job)
    assert (row.state, row.attempts, row.failures) == ("SUCCEEDED", 1, 0)
    assert worker.report["completed"] == 1


@pytest.mark.spec("S116", "S122", "S142", "A25", "D2")
def test_a_cancel_during_the_drain_ends_the_job_and_the_worker(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=300)
    (job,) = enqueue(1, tasks.nap, 300)
    wait_until(lambda: fleet.count("begin"))
    worker.send(signal.SIGTERM)
    worker.wait_for("shutdown_phase", phase="DRAINING")
    operations.cancel(Job.objects.get(pk=job), by="operator")
    assert worker.ended(20) == 0
    assert Job.objects.get(pk=job).state == "CANCELLED"
    assert outcomes() == {"CANCELLED": 1}


@pytest.mark.spec("S142", "S115")
def test_an_operators_cancel_is_fulfilled_by_the_shutdown(fleet: Fleet):
    """The handler ignores the cancel; the release of the shutdown must not make it run again."""
    worker = fleet.start(DRAIN_SECONDS=1)
    (job,) = enqueue(1, tasks.sleep_deep, 600)
    wait_until(lambda: fleet.count("begin"))
    operations.cancel(Job.objects.get(pk=job), by="operator")
    assert worker.stop() == 5
    assert Job.objects.get(pk=job).state == "CANCELLED"


@pytest.mark.spec("S134", "S135", "S203", "S215", "A21")
def test_a_leader_gives_its_role_back_before_its_jobs_have_ended(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=60)
    worker.wait_for("leader_elected")
    tasks.wait_for_file.enqueue(str(fleet.folder / "go"))
    wait_until(lambda: fleet.count("begin"))
    worker.send(signal.SIGTERM)
    assert worker.wait_for("leader_resigned")["given_back"]
    assert states() == {"RUNNING": 1}
    tasks.nap.enqueue(0)  # which nobody takes any more
    (fleet.folder / "go").touch()
    assert worker.ended(30) == 0
    assert states() == {"SUCCEEDED": 1, "READY": 1}


@pytest.mark.spec("S138")
def test_started_jobs_learn_that_the_worker_stops(fleet: Fleet):
    worker = fleet.start(DRAIN_SECONDS=60)
    (job,) = enqueue(1, tasks.finish_when_stopping)
    wait_until(lambda: fleet.count("begin"))
    assert worker.stop() == 0
    assert Job.objects.get(pk=job).state == "SUCCEEDED"
    assert worker.report["completed"] == 1


@pytest.mark.spec("S153")
def test_a_worker_that_cannot_start_says_why_in_a_sentence(fleet: Fleet):
    fleet.environment["DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
    worker = fleet.start(wait=False)
    worker.wait_for("database_unreachable")
    assert worker.stop() == 0
    assert worker.phases() == ["DRAINING", "STOPPED"]
    assert "Traceback" not in worker.text()
    limited = fleet.start("--max-runtime", "0.5", wait=False)
    assert limited.ended(30) == 4
    assert limited.report["reason"] == "max runtime"
    refused = fleet.start("--concurrency", "0", wait=False)
    assert refused.ended(30) == 2
    faulty = fleet.start(wait=False, LEASE_SECONDS=0.1)
    assert faulty.ended(30) == 1
    assert "LEASE_SECONDS" in faulty.text()
    assert "Traceback" not in faulty.text()
