"""The wait before the next attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.backoff import JITTER, delay

seconds = st.floats(min_value=0, max_value=1e8, allow_nan=False)


@pytest.mark.spec("S74")
@given(failures=st.integers(1, 100_000), base=seconds, ceiling=seconds)
def test_the_delay_is_never_negative_nor_above_the_jittered_ceiling(failures, base, ceiling):
    assert 0 <= delay(failures, base=base, ceiling=ceiling) <= ceiling * (1 + JITTER)


@pytest.mark.spec("S74")
@given(failures=st.integers(1, 60), base=st.floats(0.001, 1e3))
def test_each_failure_doubles_the_delay(failures, base):
    first = delay(failures, base=base, ceiling=float("inf"), jitter=0)
    second = delay(failures + 1, base=base, ceiling=float("inf"), jitter=0)
    assert second == pytest.approx(2 * first)


@pytest.mark.spec("S74")
@pytest.mark.parametrize("failures", [10, 46, 63, 310, 1024, 99_998])
def test_a_large_count_reaches_the_ceiling_and_no_overflow(failures):
    assert delay(failures, base=1e6, ceiling=3600, jitter=0) == 3600


@pytest.mark.spec("S74")
@given(failures=st.integers(1, 40))
def test_the_jitter_spreads_by_a_fifth_to_either_side(failures):
    plain = delay(failures, base=1, ceiling=3600, jitter=0)
    assert 0.8 * plain <= delay(failures, base=1, ceiling=3600) <= 1.2 * plain


@pytest.mark.spec("S74")
def test_a_number_replaces_the_base():
    assert delay(3, base=1, ceiling=3600, rule=10, jitter=0) == 40


@pytest.mark.spec("S74")
def test_a_function_replaces_the_curve_but_not_the_ceiling():
    assert delay(3, base=1, ceiling=3600, rule=lambda count: count * 7, jitter=0) == 21
    assert delay(3, base=1, ceiling=20, rule=lambda count: count * 7, jitter=0) == 20


@pytest.mark.spec("S74")
@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_a_function_that_returns_no_delay_is_named(bad):
    with pytest.raises(ValueError, match=r"backoff returned .*; it must return seconds"):
        delay(1, base=1, ceiling=10, rule=lambda _: bad)
