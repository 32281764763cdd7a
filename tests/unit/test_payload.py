"""What JSON carries, and what is refused with its path."""

import datetime as dt
import decimal
import enum
import json
import uuid
from collections import UserDict, UserList, UserString, deque
from types import MappingProxyType

import pytest
from django.contrib.auth.models import User
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.exceptions import ArgumentsError
from jobqueue.payload import NotJSON, clean, encode

LIMIT = 10_000


def stored(value):
    return encode(value, "args", LIMIT, "ARGS_MAX_BYTES")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner
        )
    ),
    max_leaves=20,
)


@pytest.mark.spec("S22")
@given(plain)
def test_what_is_accepted_comes_back_equal(value):
    assert json.loads(encode(value, "args", 10**6, "ARGS_MAX_BYTES")) == value


@pytest.mark.parametrize(
    "value", [r"\u0000", "emoji \N{PILE OF POO}", mark_safe("<b>"), Level.HIGH]
)
def test_strings_and_numbers_of_special_classes_become_plain_ones(value):
    assert json.loads(stored([value])) == [value]


def test_a_tuple_becomes_a_list():
    assert json.loads(stored([(1, 2)])) == [[1, 2]]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (UserDict(a=range(3)), {"a": [0, 1, 2]}),
        ([deque([MappingProxyType({"k": (1, UserList([2]))})])], [[{"k": [1, [2]]}]]),
        ({"a": [1, {"b": deque()}], "c": 2}, {"a": [1, {"b": []}], "c": 2}),
        ((1, range(2)), [1, [0, 1]]),
    ],
)
def test_mappings_and_sequences_of_every_kind_are_objects_and_arrays(value, plain):
    before = repr(value)
    assert json.loads(stored(value)) == plain
    assert repr(value) == before


@pytest.mark.parametrize("value", [b"x", {1: 2}, float("nan"), object(), "a\0", "é" * LIMIT])
def test_what_is_refused_raises_what_django_s_own_backends_raise(value):
    """TypeError for most of it, ValueError for some."""
    for kind in (TypeError, ValueError):
        with pytest.raises(kind):
            stored(value)
    assert issubclass(ArgumentsError, TypeError)
    assert issubclass(ArgumentsError, ValueError)


@pytest.mark.spec("S22", "D69", "D70", "D71", "D72")
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            [1, {"when": dt.datetime(2026, 1, 1)}],
            "args[1]['when'] is of type datetime. Pass value.isoformat().",
        ),
        ([dt.date(2026, 1, 1)], "args[0] is of type date. Pass value.isoformat()."),
        ([uuid.UUID(int=1)], "args[0] is of type UUID. Pass str(value)"),
        ([decimal.Decimal(1)], "args[0] is of type Decimal. Pass str(value)"),
        ([{1, 2}], "args[0] is of type set. Pass a sorted list."),
        ([b"x"], "args[0] is of type bytes. Pass text, or base64 of it."),
        ([bytearray(b"x")], "args[0] is of type bytearray. Pass text, or base64 of it."),
        ([{"a": memoryview(b"x")}], "args[0]['a'] is of type memoryview. Pass text"),
        ([UserString("x")], "args[0] is of type UserString. Pass str(value)"),
        ([range(10**12)], "args[0] has 1000000000000 items, more than fit into 10000 bytes."),
        ([deque([UserDict({1: 2})])], "args[0][0] has the key 1 of type int"),
        ([Colour.RED], "args[0] is of type Colour."),
        ([gettext_lazy("x")], "args[0] is of type __proxy__. Pass str(value)"),
        ([User(pk=1)], "args[0] is of type User. Pass its primary key"),
        ([object()], "args[0] is of type object."),
        ([{1: 2}], "args[0] has the key 1 of type int; JSON keys are strings."),
        ([{None: 2}], "args[0] has the key None of type NoneType"),
        ([float("nan")], "args[0] is nan, which JSON does not know."),
        ([{"a": [float("-inf")]}], "args[0]['a'][0] is -inf"),
        (["a\0b"], "args[0] contains a NUL character"),
        ([{"a\0": 1}], "the key 'a\\x00' of args[0] contains a NUL character"),
        (["\ud800"], "args[0] contains half a surrogate pair"),
        ([{"\udfff": 1}], "of args[0] contains half a surrogate pair"),
        ([2**20_000], "args[0] is a whole number of more than 14000 bits."),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_path(value, sentence):
    with pytest.raises(NotJSON) as error:
        stored(value)
    assert str(error.value).startswith(sentence) or sentence in str(error.value)


@pytest.mark.spec("S22")
def test_a_list_that_contains_itself_is_refused():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotJSON, match="deeper than 100 levels, or contains itself"):
        stored(endless)


@pytest.mark.spec("S13", "S22")
def test_the_limit_counts_bytes_and_names_its_setting():
    assert encode("é" * 4, "args", 10, "ARGS_MAX_BYTES")
    with pytest.raises(NotJSON, match="args takes 12 bytes as JSON; ARGS_MAX_BYTES allows 10"):
        encode("é" * 5, "args", 10, "ARGS_MAX_BYTES")


@given(st.text(), st.integers(50, 200))
def test_a_cleaned_text_is_storable_and_short(text, limit):
    short = clean(text, limit)
    assert "\0" not in short
    short.encode()
    assert len(short) <= limit + 20


def test_a_cut_text_keeps_both_ends():
    assert clean("a" * 500 + "b" * 500, 100).startswith("a" * 30)
    assert clean("a" * 500 + "b" * 500, 100).endswith("b" * 30)
    assert "940 characters left out" in clean("a" * 500 + "b" * 500, 100)
