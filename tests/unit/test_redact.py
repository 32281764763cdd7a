from typing import Any

import pytest

from jobqueue import redact

pytestmark = pytest.mark.spec("S228")
COVER = redact.COVER


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": "x", "user": "ann"}, {"password": COVER, "user": "ann"}),
        ({"API_TOKEN": {"deep": 1}}, {"API_TOKEN": COVER}),
        ([{"Authorization": "Bearer x"}], [{"Authorization": COVER}]),
        ({"note": "pay with 4111 1111 1111 1111 now"}, {"note": f"pay with {COVER} now"}),
        ({"n": 4111111111111111}, {"n": COVER}),
        ({"n": 1234567890123456}, {"n": 1234567890123456}),
        ({"phone": "0049 171 1234567"}, {"phone": "0049 171 1234567"}),
        ("plain", "plain"),
        (True, True),
        (None, None),
    ],
)
def test_secrets_are_covered_by_their_key_or_because_they_are_card_numbers(
    value: Any, shown: Any
) -> None:
    assert redact.redact(value) == shown


def test_a_positional_secret_is_known_by_its_parameters_name() -> None:
    signature = "(context, user, password, *, card_number=None)"
    assert redact.arguments(["ann", "x"], {"card_number": 7}, signature) == (
        ["ann", COVER],
        {"card_number": COVER},
    )
    assert redact.arguments(["ann", "x"], {}, "(user, token='a,b')")[0] == ["ann", COVER]
    assert redact.arguments(["x", "y"], {}, "(*args, **kwargs)")[0] == ["x", "y"]
    assert redact.arguments(["x"], {}, "")[0] == ["x"]


def test_the_settings_say_what_is_secret(settings: Any) -> None:
    settings.JOBQUEUE = {"REDACT": ["iban"]}
    assert redact.redact({"IBAN": 1, "password": 2}) == {"IBAN": COVER, "password": 2}


def test_deep_and_long_values_are_cut() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert "…" in redact.pretty(redact.redact(deep))[0]
    assert redact.pretty("x" * 10_000, limit=100)[1]
