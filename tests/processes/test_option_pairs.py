"""Every pair of `runworker`'s options does what both promise, with real processes.

Five options say when a run ends, or in how many processes it is done: each pair of these has a row
of its own. The others say how it is done; all of them are given in every row, and looked at.
"""

import socket
from itertools import combinations

import pytest
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.utils import timezone

from jobqueue import enqueue_many
from jobqueue.models import Attempt, Job, LeaderLease, Worker
from tests.processes import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

HOW = ("--queues", "--concurrency", "--name", "--no-leader", "--probe", "--log-format")
ENDS = ("--processes", "--until-idle", "--max-runtime", "--max-jobs", "--max-memory")
REFUSED = ("--tenant",)  # with anything, by a sentence
FEW, MANY = 6, 40  # jobs

# Options, jobs, jobs of a minute: the exit code, and the reasons of the workers that stopped.
PAIRS = [
    ("--until-idle --max-runtime 60", FEW, 0, 0, {"idle"}),
    ("--until-idle --max-runtime 0.5", FEW, 1, 4, {"max runtime"}),
    ("--until-idle --max-jobs 4", FEW, 0, 0, {"4 jobs done, --max-jobs is 4"}),
    ("--until-idle --max-jobs 100", FEW, 0, 0, {"idle"}),
    ("--until-idle --max-memory 1", FEW, 0, 0, {"MiB in use, --max-memory is 1"}),
    ("--until-idle --max-memory 90000", FEW, 0, 0, {"idle"}),
    ("--max-runtime 60 --max-jobs 4", FEW, 0, 0, {"4 jobs done, --max-jobs is 4"}),
    ("--max-runtime 2 --max-jobs 100", FEW, 0, 4, {"max runtime"}),
    ("--max-runtime 60 --max-memory 1", 0, 0, 0, {"MiB in use, --max-memory is 1"}),
    ("--max-runtime 2 --max-memory 90000", FEW, 0, 4, {"max runtime"}),
    ("--max-jobs 4 --max-memory 90000", FEW, 0, 0, {"4 jobs done, --max-jobs is 4"}),
    ("--max-jobs 100 --max-memory 1", 0, 0, 0, {"MiB in use, --max-memory is 1"}),
    ("--processes 2 --until-idle", MANY, 0, 0, {"idle"}),
    ("--processes 2 --max-runtime 4", MANY, 0, 4, {"max runtime"}),
    # A third option ends these runs.
    (
        "--processes 2 --max-jobs 15 --until-idle",
        MANY,
        0,
        0,
        {"15 jobs done, --max-jobs is 15", "idle"},
    ),
    (
        "--processes 2 --max-memory 1 --max-runtime 12",
        0,
        0,
        4,
        {"MiB in use, --max-memory is 1"},
    ),
]


def free_ports():
    """Two in a row, for two workers with a probe."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def reason_of(event):
    """Without the figures that vary."""
    why = event["reason"]
    return why.partition(" ")[2] if "MiB" in why else why


@pytest.mark.spec("S158", "S160", "S162", "S196", "S197")
@pytest.mark.parametrize(("options", "jobs", "long", "code", "reasons"), PAIRS)
def test_both_of_a_pair_hold(fleet, options, jobs, long, code, reasons):
    enqueue_many([(tasks.add, (n, 1)) for n in range(jobs)])
    enqueue_many([(tasks.sleep, (60,)) for _ in range(long)])
    elsewhere = tasks.add.using(queue_name="mail").enqueue(1, 1)
    port = free_ports()
    how = ["--queues", "default", "--concurrency", "3", "--name", "pair", "--no-leader"]
    how += ["--probe", f"127.0.0.1:{port}", "--log-format", "json"]
    worker = fleet.start(*options.split(), *how, wait=False, DRAIN_SECONDS=0)
    assert worker.ended(60) == code, worker.text()
    stopped = worker.events("worker_stopped")
    assert {reason_of(event) for event in stopped} == reasons
    _shows_how(worker, port, elsewhere, supervised="--processes" in options)
    _shows_the_end(options, jobs, stopped, worker)


def _shows_how(worker, port, elsewhere, *, supervised):
    assert Job.objects.get(pk=elsewhere.id).state == "READY"  # --queues
    rows = list(Worker.objects.all())
    assert {row.concurrency for row in rows} == {3}
    assert {row.name for row in rows} == ({"pair-1", "pair-2"} if supervised else {"pair"})
    assert not LeaderLease.objects.filter(term__gt=0).exists()
    assert not worker.events("leader_elected")
    ports = {event["port"] for event in worker.events("probe_listening")}
    assert ports == ({port, port + 1} if supervised else {port})
    assert worker.events("worker_started")  # as JSON


def _shows_the_end(options, jobs, stopped, worker):
    begun = Attempt.objects.exclude(outcome="INTERRUPTED").count()
    if "--max-jobs 4 " in f"{options} ":
        assert begun == 4
    elif "--max-jobs 15" in options:
        assert begun == MANY
        assert all(event["claimed"] <= 15 for event in stopped)
        assert len(stopped) > 2
    else:
        assert begun == jobs or "--max-memory 1" in options
    if "--processes 2 --max-memory 1" in options:
        assert len(stopped) >= 2  # and their replacements, as long as the run went on
        assert not worker.events("child_given_up")
    elif "--processes 2 --max-runtime" in options:
        assert len(stopped) == 2


def test_the_table_has_every_pair_of_the_commands_options():
    parser = load_command_class("jobqueue", "runworker").create_parser("manage.py", "runworker")
    django = BaseCommand().create_parser("manage.py", "any")
    general = {word for action in django._actions for word in action.option_strings}
    words = {word for action in parser._actions for word in action.option_strings}
    assert words - general == {*HOW, *ENDS, *REFUSED}
    shown = {
        frozenset(pair)
        for options, *_ in PAIRS
        for pair in combinations([word for word in options.split() if word[:2] == "--"], 2)
    }
    assert shown >= {frozenset(pair) for pair in combinations(ENDS, 2)}


@pytest.mark.spec("S197f")
def test_an_option_of_later_versions_is_refused_beside_any_other(fleet):
    worker = fleet.start("--tenant", "x", "--processes", "2", "--max-runtime", "1", wait=False)
    assert worker.ended(40) == 2


@pytest.mark.spec("S162")
def test_the_start_takes_nothing_from_a_short_run(fleet):
    """Its time counts from when it serves, in each of several processes."""
    enqueue_many([(tasks.add, (n, 1)) for n in range(FEW)])
    worker = fleet.start("--max-runtime", "1", "--processes", "2", wait=False)
    assert worker.ended(60) == 4
    started, stopped = worker.events("worker_started"), worker.events("worker_stopped")
    assert len(started) == len(stopped) == 2
    for one in stopped:
        serves = next(each for each in started if each["worker"] == one["worker"])
        begin, end = (timezone.datetime.fromisoformat(e["timestamp"]) for e in (serves, one))
        assert (end - begin).total_seconds() >= 1
    assert Attempt.objects.exists()
