"""Handlers that fork: the child ends as a child, and the worker never notices but for one line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobqueue.models import Job
from jobqueue.states import FINAL, State
from tests.children import Children, wait_until
from tests.processes import forking

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.spec("S91", "D87", "S73"),
]


@pytest.fixture
def children(transactional_db: None, tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path) as started:
        yield started


def final(job: Any) -> Job:
    return wait_until(  # type: ignore[no-any-return]
        lambda: Job.objects.filter(pk=job.id, state__in=FINAL).first(), seconds=60
    )


def events(children: Children, name: str) -> list[dict[str, Any]]:
    """The worker's log lines of this name."""
    lines = (children.folder / "0-runworker.log").read_text().splitlines()
    parsed = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in parsed if line.get("event") == name]


@pytest.mark.parametrize("way", ["returns", "raises", "exits", "leaves", "awaits"])
def test_a_forked_child_ends_and_the_worker_goes_on(children: Children, way: str) -> None:
    worker = children.worker("--concurrency", "4")
    neighbour = forking.steady.enqueue()
    tasks = [forking.aforks] if way == "awaits" else [forking.forks, forking.aforks]
    for task in tasks:
        code = final(task.enqueue(way)).result
        assert code == {"returns": 0, "raises": 1, "exits": 7, "leaves": 9, "awaits": 1}[way]
    assert final(neighbour).state == State.SUCCEEDED
    assert worker.poll() is None
    logged = events(children, "handler_forked")
    assert [line["level"] for line in logged] == ["error"] * len(tasks)
    assert {line["task"] for line in logged} <= {
        "tests.processes.forking.forks",
        "tests.processes.forking.aforks",
    }
    worker.terminate()
    assert worker.wait(30) == 0
    assert len(events(children, "worker_stopped")) == 1


def test_a_forked_child_may_use_the_orm_on_a_connection_of_its_own(children: Children) -> None:
    worker = children.worker()
    mine, childs, again = final(forking.forks_and_queries.enqueue()).result
    assert mine == again != childs
    assert worker.poll() is None


def test_a_signal_to_a_child_is_not_one_to_the_worker(children: Children) -> None:
    worker = children.worker()
    assert final(forking.forks_and_terminates.enqueue()).result == -15
    assert final(forking.steady.enqueue()).state == State.SUCCEEDED
    assert worker.poll() is None
    assert events(children, "shutdown_phase") == []


@pytest.mark.spec("D124")
def test_a_pool_of_processes_works_in_a_handler(children: Children) -> None:
    children.worker()
    assert final(forking.pools.enqueue()).result == [0, 1, 4, 9]
