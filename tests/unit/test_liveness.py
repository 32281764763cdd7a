"""Certificates of death: by real processes where they can show it, else by a made /proc."""

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobqueue.worker.process import liveness
from jobqueue.worker.process.liveness import Life, certify, identity

pytestmark = [
    pytest.mark.skipif(identity().pid_started is None, reason="this system has no /proc"),
    pytest.mark.spec("S109"),
]
SLEEP = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child():
    """A process of ours, and the facts that its row would hold."""
    process = subprocess.Popen(SLEEP, stdin=subprocess.PIPE)
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    facts = dataclasses.replace(identity(), pid=process.pid, pid_started=int(stat[19]))
    yield process, facts
    process.kill()
    process.communicate()


def test_a_running_neighbour_is_alive(child):
    assert certify(child[1]) is Life.ALIVE


def test_a_frozen_neighbour_is_alive(child):
    process, facts = child
    process.send_signal(19)  # SIGSTOP
    assert certify(facts) is Life.ALIVE


def test_a_process_that_was_reaped_is_dead(child):
    process, facts = child
    process.kill()
    process.wait()
    assert certify(facts) is Life.DEAD


def test_a_zombie_is_unknown_until_it_is_reaped(child):
    process, facts = child
    process.kill()
    end = time.monotonic() + 10
    while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < end
    assert certify(facts) is Life.UNKNOWN


def test_a_pid_that_belongs_to_another_process_now_means_dead(child):
    earlier = dataclasses.replace(child[1], pid_started=child[1].pid_started - 1)
    assert certify(earlier) is Life.DEAD


def test_a_predecessor_with_our_own_pid_is_dead():
    me = identity()
    assert certify(me) is Life.ALIVE
    assert certify(dataclasses.replace(me, pid_started=me.pid_started - 1)) is Life.DEAD


@pytest.mark.parametrize("fact", ["boot_id", "pid_namespace", "time_namespace"])
@pytest.mark.parametrize("value", ["another", ""])
def test_another_boot_or_namespace_is_unknown(child, fact, value):
    process, facts = child
    process.kill()
    process.wait()
    assert certify(dataclasses.replace(facts, **{fact: value})) is Life.UNKNOWN


def test_a_row_without_start_ticks_is_unknown(child):
    process, facts = child
    process.kill()
    process.wait()
    assert certify(dataclasses.replace(facts, pid_started=None)) is Life.UNKNOWN


def test_a_process_that_we_may_not_signal_is_unknown(child):
    def refuse(pid, signal):
        raise PermissionError

    earlier = dataclasses.replace(child[1], pid_started=1)
    assert certify(earlier, kill=refuse) is Life.UNKNOWN


@pytest.fixture
def proc(tmp_path):
    """A made /proc in which this process sees itself and nobody else."""
    root, me = tmp_path / "proc", os.getpid()
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text("boot\n")
    add_process(root, me, 1000)
    (root / "self").symlink_to(str(me))
    return root


def add_process(root, pid, started, *, name="python", state="S"):
    (root / f"{pid}/ns").mkdir(parents=True)
    (root / f"{pid}/stat").write_text(f"{pid} ({name}) {state} {'0 ' * 18}{started} 0 0\n")
    (root / f"{pid}/ns/pid").symlink_to("pid:[1]")
    (root / f"{pid}/ns/time").symlink_to("time:[2]")


def neighbour(root, started=2000, pid=77):
    return dataclasses.replace(identity(root), pid=pid, pid_started=started)


def there(pid, signal):
    """A kill that finds every process."""


def gone(pid, signal):
    raise ProcessLookupError


def test_a_neighbour_hidden_by_hidepid_is_unknown(proc):
    assert certify(neighbour(proc), proc, there) is Life.UNKNOWN


def test_with_hidepid_no_such_process_still_means_dead(proc):
    assert certify(neighbour(proc), proc, gone) is Life.DEAD


def test_a_command_name_with_parentheses_and_blanks_is_read_right(proc):
    add_process(proc, 77, 2000, name="a) S 1 (b")
    assert certify(neighbour(proc), proc, there) is Life.ALIVE
    assert certify(neighbour(proc, started=1999), proc, there) is Life.DEAD


@pytest.mark.parametrize("text", ["", "77 (python)", "77 (python) S 1 2 3"])
def test_a_stat_that_cannot_be_read_is_unknown(proc, text):
    add_process(proc, 77, 2000)
    (proc / "77/stat").write_text(text)
    assert certify(neighbour(proc, started=1), proc, there) is Life.UNKNOWN


def test_the_proc_of_another_pid_namespace_certifies_nothing(proc):
    row = neighbour(proc)
    (proc / "self").unlink()
    add_process(proc, 4711, 500)
    (proc / "self").symlink_to("4711")
    assert certify(row, proc, gone) is Life.UNKNOWN
    assert identity(proc).pid_started is None


def test_without_a_proc_nothing_is_certified(proc, tmp_path):
    assert certify(neighbour(proc), tmp_path / "nothing", gone) is Life.UNKNOWN


ASK = """
import json, sys
from jobqueue.worker.process import liveness
row = liveness.Facts(**json.loads(sys.argv[1]))
print(liveness.certify(row))
"""


@pytest.mark.parametrize(
    "options",
    [
        ["--pid", "--fork"],  # a new pid namespace below the /proc of the old one
        ["--pid", "--fork", "--mount-proc"],
        ["--time", "--boottime", "1000"],
    ],
    ids=["foreign-proc", "pid-namespace", "time-namespace"],
)
def test_from_within_another_namespace_nothing_is_certified(child, options):
    if shutil.which("unshare") is None or subprocess.run(["unshare", *options, "true"]).returncode:
        pytest.skip("this system gives no namespaces")
    process, facts = child
    process.kill()
    process.wait()
    import json

    command = [
        "unshare",
        *options,
        sys.executable,
        "-c",
        ASK,
        json.dumps(dataclasses.asdict(facts)),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert answer.stdout.strip() == Life.UNKNOWN


ROOT = Path(liveness.__file__).parents[3]
