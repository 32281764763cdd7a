"""When jobs that were put off for a moment fall due."""

from math import inf

from jobqueue.worker.claiming.promotion_timer import APART_SECONDS, SOON_SECONDS, PromotionTimer


def test_each_is_due_at_its_moment_or_a_breath_later():
    dues = PromotionTimer()
    assert dues.next == inf
    assert dues.add(1.0, now=100.0)
    assert not dues.add(2.0, now=100.0)
    assert dues.add(0.5, now=100.0)
    assert 100.5 <= dues.next < 100.5 + APART_SECONDS
    assert not dues.pop_due(100.49)
    assert dues.pop_due(100.5 + APART_SECONDS)
    assert 101.0 <= dues.next < 101.0 + APART_SECONDS


def test_what_is_far_off_is_left_to_the_leader_and_the_poll():
    dues = PromotionTimer()
    assert not dues.add(SOON_SECONDS + 1, now=100.0)
    assert dues.next == inf


def test_many_jobs_are_few_numbers():
    dues = PromotionTimer()
    for number in range(100_000):
        dues.add(number % 5_000 / 1_000, now=100.0)
    assert len(dues._ticks) <= SOON_SECONDS / APART_SECONDS + 1
