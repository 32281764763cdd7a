"""Which queue is asked next."""

from collections import Counter

import pytest

from jobqueue.worker.claiming.queue_selector import Turns


@pytest.mark.spec("S55")
def test_hot_queues_take_weighted_turns():
    turns, asked = Turns({"a": 3, "b": 1}), Counter()
    for _ in range(400):
        turns.heat(None)
        asked[turns.next()] += 1
    assert asked == {"a": 300, "b": 100}


@pytest.mark.spec("S55")
def test_no_queue_waits_for_a_long_run_of_another():
    turns = Turns({"a": 100, "b": 1})
    turns.heat(None)
    assert [turns.next(), turns.next(), turns.next()] == ["a", "b", None]


def test_only_queues_of_this_worker_are_heated():
    turns = Turns({"a": 1, "b": 1})
    assert not turns.heat("other")
    assert turns.next() is None
    assert turns.heat("b")
    assert [turns.next(), turns.next()] == ["b", None]
