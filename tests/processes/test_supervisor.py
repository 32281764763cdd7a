"""A real supervisor with real children and real signals; the children are small scripts."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import AsyncMock, Mock
from uuid import uuid4

import pytest
import pytest_asyncio

from jobqueue.conf import Settings
from jobqueue.store.error_classes import CallTimeout
from jobqueue.supervisor import Supervisor, worst
from jobqueue.worker.process.child_watch import Child
from jobqueue.worker.process.recycle import Recycling, resident_bytes
from tests.rows import add_running, add_worker, ago, ahead, one
from tests.waiting import until

RUNNER = Path(__file__).with_name("run_supervisor.py")
ROOT = RUNNER.parents[2]

# Notes "<pid> <word>" for its start and every signal; ends by TERM or INT with EXIT.
CHILD = """
import os, signal, sys
notes = os.environ["NOTES"]
def note(word):
    with open(notes, "a") as file:
        file.write(f"{os.getpid()} {os.environ['JOBQUEUE_CHILD']} {word}\\n")
def heard(number, frame):
    note(signal.Signals(number).name)
    if number in (signal.SIGTERM, signal.SIGINT):
        sys.exit(int(os.environ.get("EXIT", 0)))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
    signal.signal(number, heard)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP, signal.SIGUSR2})
note("start")
while True:
    signal.pause()
"""
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: open(os.environ["NOTES"], "a").write("1 1 deaf\\n"))
open(os.environ["NOTES"], "a").write(f"{os.getpid()} 1 start\\n")
while True:
    signal.pause()
"""
SLOW = f"""
import os, signal, sys, time
def note(word):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{{os.getpid()}} 1 {{word}}\\n")
def heard(number, frame):
    time.sleep({Settings(drain_seconds=0.1, cancel_seconds=0.1).exit_seconds})
    note("end")
    sys.exit(0)
signal.signal(signal.SIGTERM, heard)
note("start")
while True:
    signal.pause()
"""
ORPHAN = """
import asyncio, os
from jobqueue.worker.process.supervisor_link import parent
def note(word):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{os.getpid()} {os.environ['JOBQUEUE_CHILD']} {word}\\n")
note("start")
number = os.environ["JOBQUEUE_CHILD"]
asyncio.run(parent().gone())
os.environ["JOBQUEUE_CHILD"] = number
note("orphaned")
"""

START = """
import os
with open(os.environ["NOTES"], "a") as file:
    file.write(f"{os.getpid()} 1 start\\n")
"""


@pytest.fixture
def supervise(parameters, tmp_path):
    """Start supervisors; whatever is left of them and their children is killed after the test."""
    started, notes = [], tmp_path / "notes"
    notes.touch()

    def supervise(
        script,
        processes=2,
        *,
        restart=True,
        max_runtime=None,
        program=sys.executable,
        capture=False,
        **settings,
    ):
        plain = {key: value for key, value in parameters.items() if isinstance(value, str | int)}
        ends = [json.dumps(restart), json.dumps(max_runtime)]
        arguments = [json.dumps(plain), json.dumps(settings), str(processes), *ends]
        process = subprocess.Popen(
            [sys.executable, RUNNER, *arguments, program, "-c", script],
            cwd=ROOT,
            stdout=subprocess.PIPE if capture else None,
            env={
                **os.environ,
                "NOTES": str(notes),
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            },
        )
        process.notes = lambda: [line.split() for line in notes.read_text().splitlines()]
        process.pids = lambda: [int(pid) for pid, _, word in process.notes() if word == "start"]
        started.append(process)
        return process

    yield supervise
    for process in started:
        process.kill()
        process.wait()
        for pid in process.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def heard(process, word):
    return [pid for pid, _, said in process.notes() if said == word]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.spec("S197c")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_reaches_every_child_and_nothing_is_restarted(supervise, number):
    process = supervise(CHILD, 3)
    await until(lambda: len(process.pids()) == 3)
    process.send_signal(number)
    await until(lambda: process.poll() is not None)
    assert process.returncode == 0
    assert len(heard(process, number.name)) == 3
    assert len(process.pids()) == 3


@pytest.mark.spec("S196")
async def test_a_fallen_child_is_replaced_and_the_others_live_on(supervise):
    process = supervise(CHILD, 2)
    await until(lambda: len(process.pids()) == 2)
    first, second = process.pids()
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(process.pids()) == 3)
    assert alive(second)
    process.terminate()
    await until(lambda: process.poll() is not None)
    assert process.returncode == 0


@pytest.mark.spec("S197d")
async def test_hup_and_usr2_are_forwarded_and_not_obeyed(supervise):
    process = supervise(CHILD, 2)
    await until(lambda: len(process.pids()) == 2)
    for number in (signal.SIGHUP, signal.SIGUSR2):
        process.send_signal(number)
        await until(lambda number=number: len(heard(process, number.name)) == 2)
    assert process.poll() is None


@pytest.mark.spec("S196", "S197")
async def test_a_child_that_falls_again_and_again_is_given_up_and_the_verdict_says_so(supervise):
    falls = START + "os._exit(3)"
    process = supervise(falls, 1, FIRST_WAIT_SECONDS=0.001, LONGEST_WAIT_SECONDS=0.01)
    await until(lambda: process.poll() is not None, seconds=40)
    assert process.returncode == 3
    assert len(process.pids()) == 11


@pytest.mark.spec("S197")
async def test_a_program_that_cannot_be_started_is_tried_again_and_given_up(supervise):
    quick = {"FIRST_WAIT_SECONDS": 0.001, "LONGEST_WAIT_SECONDS": 0.01}
    process = supervise(CHILD, 1, program="/no/such/program", **quick)
    await until(lambda: process.poll() is not None, seconds=40)
    assert process.returncode == 1


@pytest.mark.spec("S196")
async def test_a_child_that_asks_to_be_recycled_is_replaced_without_counting(supervise):
    recycled = START + "os._exit(10)"
    process = supervise(recycled, 1, RECYCLE_PAUSE_SECONDS=0.001)
    await until(lambda: len(process.pids()) > 15, seconds=40)
    assert process.poll() is None


@pytest.mark.spec("S197c", "A26")
async def test_what_outlives_its_own_deadline_is_killed_and_counts_as_1(supervise):
    process = supervise(STUBBORN, 1, drain_seconds=0.1, cancel_seconds=0.1, KILL_MARGIN_SECONDS=0.1)
    await until(lambda: process.pids())
    process.terminate()
    await until(lambda: heard(process, "deaf"))
    await until(lambda: process.poll() is not None)
    assert process.returncode == 1


@pytest.mark.spec("A26", "S197c")
async def test_a_child_that_needs_all_of_its_own_time_is_not_killed(supervise):
    process = supervise(SLOW, 1, drain_seconds=0.1, cancel_seconds=0.1)
    await until(lambda: process.pids())
    process.terminate()
    await until(lambda: process.poll() is not None)
    assert process.returncode == 0
    assert heard(process, "end")


@pytest.mark.spec("S197e")
async def test_children_notice_that_their_supervisor_was_killed(supervise):
    process = supervise(ORPHAN, 2)
    await until(lambda: len(process.pids()) == 2)
    process.kill()
    await until(lambda: len(heard(process, "orphaned")) == 2)


@pytest.mark.spec("S197e")
async def test_the_verdict_is_the_worst_exit_code(supervise):
    codes = "import os; os._exit({'1': 0, '2': 4, '3': 3}[os.environ['JOBQUEUE_CHILD']])"
    process = supervise(codes, 3, restart=False)
    await until(lambda: process.poll() is not None)
    assert process.returncode == 3


@pytest.mark.spec("S197e")
@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ([0, 0], 0),
        ([0, 4], 4),
        ([4, 3], 3),
        ([3, 6], 6),
        ([6, 5], 5),
        ([3, 5], 5),
        ([0, 10], 0),
        ([4, 11], 3),
        ([5, 1], 1),
        ([0, -9], 1),
        ([0, 77], 1),
        ([], 0),
    ],
)
def test_the_order_of_exit_codes(codes, verdict):
    assert worst(codes) == verdict


@pytest.mark.spec("S197", "S162")
async def test_a_child_whose_run_is_over_is_not_started_again(supervise):
    process = supervise(START + "os._exit(4)", 2, max_runtime=60.0)
    await until(lambda: process.poll() is not None)
    assert process.returncode == 4
    assert len(process.pids()) == 2


@pytest.mark.spec("S196", "S162")
async def test_a_replacement_has_what_is_left_of_the_run_and_none_is_started_after_it(supervise):
    left = START + "print(os.environ['JOBQUEUE_MAX_RUNTIME'], flush=True); os._exit(10)"
    process = supervise(left, 1, max_runtime=5.0, RECYCLE_PAUSE_SECONDS=1.0, capture=True)
    text, _ = await asyncio.to_thread(process.communicate)
    runtimes = [float(line) for line in text.split()]
    assert process.returncode == 4
    assert 1 < len(runtimes) < 10
    assert runtimes == sorted(runtimes, reverse=True)
    assert 4 < runtimes[0] <= 5


@pytest.mark.spec("S196", "S160")
async def test_in_drain_mode_only_a_child_that_asks_for_it_is_replaced(supervise):
    recycled = START + "os._exit(11 if len(open(os.environ['NOTES']).readlines()) < 4 else 0)"
    process = supervise(recycled, 1, restart=False, RECYCLE_PAUSE_SECONDS=0.001)
    await until(lambda: process.poll() is not None)
    assert len(process.pids()) == 4
    assert process.returncode == 3  # a job died in one that was replaced


@pytest.mark.spec("S109")
async def test_the_death_of_a_reaped_child_is_on_record_and_announced_at_once(
    supervise, connection, connect
):
    listener = await connect()
    await listener.execute("LISTEN jobqueue")
    process = supervise(CHILD, 1)
    [pid] = await until(process.pids)
    worker = await add_worker(connection, pid=pid, id=_worker(pid))
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    note = json.loads((await anext(listener.notifies(timeout=20))).payload)
    assert note == {"kind": "died", "worker": str(worker)}
    assert time.monotonic() - begin < 15
    died = "SELECT died_at IS NOT NULL FROM jobqueue_worker WHERE id = %s"
    assert await one(connection, died, worker)


@pytest.mark.spec("S197b")
async def test_a_child_without_a_beat_is_replaced_and_no_other(supervise, connection):
    process = supervise(CHILD, 3, LOOK_SECONDS=0.1, STALE_SECONDS=30.0, heartbeat_seconds=0.1)
    frozen, alive_one, starting = await until(lambda: len(process.pids()) == 3 and process.pids())
    await add_worker(connection, pid=alive_one, id=_worker(alive_one))
    stale = await add_worker(connection, pid=frozen, id=_worker(frozen), last_seen_at=ago(30))
    await until(lambda: len(process.pids()) == 4)
    died = "SELECT died_at IS NOT NULL FROM jobqueue_worker WHERE id = %s"
    await until(lambda: one(connection, died, stale))
    assert not alive(frozen)
    assert alive(alive_one)
    assert alive(starting)  # has no row yet


def supervisor_of(settings, *children):
    supervisor = Supervisor(["unused"], 1, settings, restart=True, max_runtime=None)
    supervisor.children |= dict(enumerate(children))
    return supervisor


def a_child(pid):
    """A child that only notes what it is sent."""
    return Child(uuid4(), Mock(pid=pid))


@pytest.mark.spec("S197b")
async def test_only_two_answers_in_a_row_end_a_child(monkeypatch):
    child = a_child(7)
    supervisor = supervisor_of(Settings(), child)
    away, silent = CallTimeout("away"), {child.worker}
    call = AsyncMock(side_effect=[away, silent, away, silent, set(), silent, silent])
    monkeypatch.setattr(supervisor._session, "call", call)
    for _ in range(6):
        await supervisor.watch.end_the_silent()
    child.process.send_signal.assert_not_called()
    await supervisor.watch.end_the_silent()
    child.process.send_signal.assert_called_once_with(signal.SIGKILL)


@pytest.mark.spec("S109")
async def test_a_child_that_was_given_the_pid_of_a_dead_one_is_not_certified_with_it(connection):
    """The first one's death could not be recorded while the database was away."""
    dead, living = a_child(7), a_child(7)
    supervisor = supervisor_of(Settings(notify=False), living)
    supervisor.watch.reaped(dead)
    for child in (dead, living):
        given = {"id": child.worker, "pid": 7, "supervisor": supervisor.id}
        await add_worker(connection, **given)
    assert await supervisor.watch.certify()
    await supervisor._session.close()
    died = "SELECT died_at IS NOT NULL FROM jobqueue_worker WHERE id = %s"
    assert await one(connection, died, dead.worker)
    assert not await one(connection, died, living.worker)


@pytest.mark.spec("S197b")
async def test_a_slow_beat_makes_a_child_silent_only_after_the_beats_that_may_fail(connection):
    """A beat of 90 s with a lease of 600 s: three beats that failed are still health."""
    slow = Settings(heartbeat_seconds=90.0, lease_seconds=600.0)
    late, frozen = a_child(7), a_child(8)
    supervisor = supervisor_of(slow, late, frozen)
    watch = supervisor.watch
    assert watch.stale_seconds == slow.tolerated_silence_seconds == 265.5
    # After an outage a beat is tried again within a quarter, and may take its budget.
    assert watch.look_seconds > slow.heartbeat_seconds / 4 + slow.beat_budget_seconds
    for child, silence in ((late, 200.0), (frozen, 300.0)):
        await add_worker(connection, id=child.worker, last_seen_at=ago(silence))
    for _ in range(2):
        await watch.end_the_silent()
    await supervisor._session.close()
    late.process.send_signal.assert_not_called()
    frozen.process.send_signal.assert_called_once_with(signal.SIGKILL)
    quick = supervisor_of(Settings()).watch
    assert (quick.stale_seconds, quick.look_seconds) == (60.0, 15.0)


@pytest.mark.spec("S197d")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
async def test_a_child_that_is_starting_does_not_die_of_what_it_will_listen_to(supervise, number):
    process = supervise(LATE, 2)
    await until(lambda: len(process.pids()) == 2)
    process.send_signal(number)
    process.send_signal(signal.SIGUSR2 if number == signal.SIGHUP else signal.SIGHUP)
    pids = process.pids()
    for pid in pids:  # it has been passed on
        await until(lambda pid=pid: number in _pending(pid))
    assert all(alive(pid) for pid in pids)
    assert process.pids() == pids


def _pending(pid):
    """The signals that are blocked and wait in a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            bits = int(line.split()[1], 16)
            return {number for number in range(1, 65) if bits >> (number - 1) & 1}
    return set()


LATE = START + "import time; time.sleep(60)"


@pytest.mark.spec("S197c", "S153")
async def test_a_child_that_hears_the_stop_before_it_listens_to_signals_ended_well(supervise):
    process = supervise(LATE, 2)
    await until(lambda: len(process.pids()) == 2)
    process.terminate()
    await until(lambda: process.poll() is not None)
    assert process.returncode == 0


@pytest_asyncio.fixture
async def nodes(parameters, connection):
    """A supervisor of three leading processes, at default settings."""
    plain = json.dumps({k: v for k, v in parameters.items() if isinstance(v, str | int)})
    command = [sys.executable, str(RUNNER.with_name("run_node.py")), plain, "{}"]
    process = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, RUNNER, plain, "{}", "3", "true", "null", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.DEVNULL,
    )
    holder = "SELECT holder FROM jobqueue_leaderlease WHERE expires_at > clock_timestamp()"
    await until(lambda: one(connection, holder), seconds=40)
    yield process
    process.terminate()
    await until(lambda: process.poll() is not None, seconds=40)


async def recovery(connection, chosen):
    """Kill the worker that this condition chooses, and wait until its job is free."""
    settled = (
        "SELECT count(*) = 3 FROM jobqueue_worker WHERE died_at IS NULL "
        "AND started_at < clock_timestamp() - interval '1 s'"
    )
    await until(lambda: one(connection, settled), seconds=60)
    living = f"SELECT id FROM jobqueue_worker w WHERE died_at IS NULL AND {chosen} LIMIT 1"
    worker = await until(lambda: one(connection, living), seconds=40)
    pid = await one(connection, "SELECT pid FROM jobqueue_worker WHERE id = %s", worker)
    job, _ = await add_running(connection, worker=worker, lease=ahead(600))
    os.kill(pid, signal.SIGKILL)
    back = "SELECT state <> 'RUNNING' FROM jobqueue_job WHERE id = %s"
    await until(lambda: one(connection, back, job), seconds=60)


LEADS = "EXISTS (SELECT FROM jobqueue_leaderlease WHERE holder = w.id AND expires_at > now())"
VICTIMS = (f"NOT {LEADS}", LEADS)


@pytest.mark.spec("S109", "S183")
async def test_the_jobs_of_killed_children_come_back_at_once(nodes, connection):
    for chosen in VICTIMS:
        await recovery(connection, chosen)


def _worker(pid):
    """The identity that its supervisor has given to a child."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)["JOBQUEUE_WORKER"]


def test_a_worker_is_due_for_recycling_by_its_memory():
    assert Recycling().due() is None
    assert "--max-memory" in Recycling(max_memory=1).due()
    assert Recycling(max_memory=10**6).due() is None
    assert 10**6 < resident_bytes() < 10**12
