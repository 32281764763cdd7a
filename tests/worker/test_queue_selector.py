"""Which queue is asked next."""

from collections import Counter

import pytest

from jobqueue.worker.claiming.queue_selector import QueueSelector


@pytest.mark.spec("S55")
def test_ready_queues_take_weighted_turns():
    selector, asked = QueueSelector({"a": 3, "b": 1}), Counter()
    for _ in range(400):
        selector.mark_ready(None)
        asked[selector.next()] += 1
    assert asked == {"a": 300, "b": 100}


@pytest.mark.spec("S55")
def test_no_queue_waits_for_a_long_run_of_another():
    selector = QueueSelector({"a": 100, "b": 1})
    selector.mark_ready(None)
    assert [selector.next(), selector.next(), selector.next()] == ["a", "b", None]


def test_only_queues_of_this_worker_are_marked():
    selector = QueueSelector({"a": 1, "b": 1})
    assert not selector.mark_ready("other")
    assert selector.next() is None
    assert selector.mark_ready("b")
    assert [selector.next(), selector.next()] == ["b", None]


def test_every_queue_but_those_left_out_is_served_as_soon_as_it_is_heard_of():
    selector = QueueSelector({"*": 1, "-mail": 0, "a": 3})
    assert selector.serves_every
    assert selector.mark_ready("new")
    assert not selector.mark_ready("mail")
    assert [selector.next(), selector.next()] == ["new", None]
    selector.discover(["b", "mail", "c"])
    asked = Counter()
    for _ in range(500):
        selector.discover(["b", "mail", "c"])
        selector.mark_ready("a")
        asked[selector.next()] += 1
    assert asked == {"a": 300, "b": 100, "c": 100}


def test_a_found_queue_that_is_empty_again_is_asked_no_more_until_it_is_heard_of():
    selector = QueueSelector({"*": 1, "a": 1})
    selector.discover(["b", "c"])
    while selector.next():
        pass
    selector.discover(["c"])
    selector.mark_ready(None)
    assert {selector.next(), selector.next(), selector.next()} == {"a", "c", None}
    assert selector.choose(["b", "x"]) in ("b", "x")  # the second connection remembers them
    assert selector.mark_ready("b")
    assert selector.next() == "b"


def test_a_queue_that_rests_keeps_its_mark_and_lets_the_others_go_first():
    selector = QueueSelector({"a": 1, "b": 1})
    selector.mark_ready("a")
    assert not selector.has_others("a")
    selector.mark_ready("b")
    assert selector.has_others("a")
    selector.rest("a")
    assert [selector.next(), selector.next()] == ["b", None]
    assert not selector.has_others("b")
    assert selector.end_rest("a")
    assert selector.next() == "a"
    assert not selector.end_rest("a")
