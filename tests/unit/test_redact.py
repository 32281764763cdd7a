import time
from typing import Any

import pytest

from jobqueue.insight import redact

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
    signature = "(user, password, *, card_number=None)"
    assert redact.arguments(["ann", "x"], {"card_number": 7}, signature) == (
        ["ann", COVER],
        {"card_number": COVER},
    )
    assert redact.arguments(["ann", "x"], {}, "(user, token='a,b')")[0] == ["ann", COVER]
    assert redact.arguments(["x", "y"], {}, "(*args, **kwargs)")[0] == ["x", "y"]
    assert redact.arguments(["x"], {}, "")[0] == ["x"]
    pairs = "(user=('a', 'b'), token=', ', *secrets)"
    assert redact.arguments(["a", "x", "y", "z"], {}, pairs)[0] == ["a", COVER, COVER, COVER]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("login failed: password=hunter2", f"login failed: password={COVER}"),
        ("password='hunter 2', user='ann'", f"password='{COVER}', user='ann'"),
        ('{"api_token": "abc", "n": 1}', f'{{"api_token": "{COVER}", "n": 1}}'),
        (r'"{\"secret\": \"abc\", \"n\": 1}"', rf'"{{\"secret\": \"{COVER}\", \"n\": 1}}"'),
        ("{'secret_key': b'abc'}", f"{{'secret_key': b'{COVER}'}}"),
        ("[(b'cookie', b'sid=1; x=2'), (b'a', b'b')]", f"[(b'cookie', b'{COVER}'), (b'a', b'b')]"),
        ("Authorization: Digest a, b=c\nHost: x", f"Authorization: {COVER}\nHost: x"),
        ("Set-Cookie: sid=1; path=/\nHost: x", f"Set-Cookie: {COVER}\nHost: x"),
        ("sent Bearer abcdefghij0123456789", f"sent Bearer {COVER}"),
        ("postgresql://ann:s3cret@db:5432/shop", f"postgresql://ann:{COVER}@db:5432/shop"),
        ("GET /in?token=abc&page=2 HTTP", f"GET /in?token={COVER}&page=2 HTTP"),
        ("host=db password=abc user=ann", f"host=db password={COVER} user=ann"),
        ("Login(secret=abc): refused", f"Login(secret={COVER}): refused"),
        ("invalid token 'abc'", f"invalid token '{COVER}'"),
        ("tokens: ['a', 'b']", f"tokens: {COVER}"),
        ("paid with 4111-1111-1111-1111.", f"paid with {COVER}."),
        ("KeyError: 'password'", "KeyError: 'password'"),
        ("the token has expired", "the token has expired"),
        ("http://127.0.0.1:8000/me@home", "http://127.0.0.1:8000/me@home"),
    ],
)
def test_secrets_are_covered_within_errors_and_tracebacks(written: str, shown: str) -> None:
    assert redact.text(written) == shown
    assert redact.text(shown) == shown
    assert redact.redact([written]) == [shown]


@pytest.mark.parametrize(
    "part",
    [
        "token",
        "token ",
        "token=",
        'token="',
        "token='",
        "token: ",
        "://",
        "a:",
        "4",
        "\\",
        ")",
        " ",
    ],
)
def test_no_text_makes_covering_slow(part: str) -> None:
    start = time.process_time()
    redact.text(part * (100_000 // len(part)))
    assert time.process_time() - start < 2  # the processor's, so that a busy machine does not count


def test_the_settings_say_what_is_secret(settings: Any) -> None:
    settings.JOBQUEUE = {"REDACT": ["iban"]}
    assert redact.redact({"IBAN": 1, "password": 2}) == {"IBAN": COVER, "password": 2}


def test_deep_and_long_values_are_cut() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert "…" in redact.pretty(redact.redact(deep))[0]
    assert redact.pretty("x" * 10_000, limit=100)[1]
