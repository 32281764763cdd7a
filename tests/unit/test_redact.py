import time
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
    assert redact.cover(value) == shown


def test_a_positional_secret_is_known_by_its_parameters_name() -> None:
    signature = "(user, password, *, card_number=None)"
    assert redact.cover_arguments(["ann", "x"], {"card_number": 7}, signature) == (
        ["ann", COVER],
        {"card_number": COVER},
    )
    assert redact.cover_arguments(["ann", "x"], {}, "(user, token='a,b')")[0] == ["ann", COVER]
    assert redact.cover_arguments(["x", "y"], {}, "(*args, **kwargs)")[0] == ["x", "y"]
    pairs = "(user=('a', 'b'), token=', ', *secrets)"
    assert redact.cover_arguments(["a", "x", "y", "z"], {}, pairs)[0] == ["a", COVER, COVER, COVER]


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
    assert redact.cover_text(written) == shown
    assert redact.cover_text(shown) == shown
    assert redact.cover([written]) == [shown]


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
    redact.cover_text(part * (100_000 // len(part)))
    assert time.process_time() - start < 2  # the processor's, so that a busy machine does not count


def test_the_settings_say_what_is_secret(settings: Any) -> None:
    settings.JOBQUEUE = {"REDACT": ["iban"]}
    assert redact.cover({"IBAN": 1, "password": 2}) == {"IBAN": COVER, "password": 2}


def test_deep_and_long_values_are_cut() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert "…" in redact.pretty(redact.cover(deep))[0]
    assert redact.pretty("x" * 10_000, limit=100)[1]


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWORD", "db_password", "DB-Password", "userPassword", "password2"),
        *("api_key", "apiKey", "APIKey", "x-api-key", "apikey", "access_token", "authToken"),
        *("tokens", "credentials", "client.secret", "signature", "DATABASE_DSN"),
        *("kennwort", "Passwort", "api_schlüssel"),
        "\uff34\uff2f\uff2b\uff25\uff2e",  # in full-width letters
    ],
)
def test_a_name_is_secret_when_one_of_its_words_is(name: str) -> None:
    assert redact.is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("monkey", "author_id", "capital", "passenger", "session_count", "keyboard", "tokenizer"),
        *("compass", "discard", "user", "", "42", "secretary", "authority"),
    ],
)
def test_a_name_that_only_contains_the_letters_of_one_is_not(name: str) -> None:
    assert not redact.is_secret(name)


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("written", "secret"),
    [
        ("DB_PASSWORD=hunter2", "hunter2"),
        ("access_token: hunter2", "hunter2"),
        ('"api_key": "hunter2"', "hunter2"),
        ("failed: ApiKey: hunter2", "hunter2"),
        ("ApiKey: hunter2", "hunter2"),
        ("ValueError: password=hunter2", "hunter2"),
        ("curl -u ann:hunter2 https://shop", "hunter2"),
        ("amqp://ann:hun/ter@2@host/vhost", "hun/ter@2"),
        (f"sent {JWT}", JWT),
        (PEM, "MIIEow"),
        ("ghp_" + "a1B2" * 9, "a1B2"),
        ("key AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
        ("xoxb-12345678901-abcdef", "xoxb-12345678901-abcdef"),
    ],
)
def test_secrets_are_found_in_free_text(written: str, secret: str) -> None:
    assert secret not in redact.cover_text(written)


@pytest.mark.parametrize(
    "written",
    [
        "KeyError: 'email'",
        "SessionExpired: log in",
        "shop.errors.TokenExpired: log in again",
        "Traceback:\n  KeyError: 'email'",
        "monkey=banana author: Ann",
        "http://127.0.0.1:8000/in?next=a@b",
        "at 12:30 for order 4711",
    ],
)
def test_plain_text_stays_readable(written: str) -> None:
    assert redact.cover_text(written) == written


def test_lists_of_names_and_values_are_covered_by_the_name() -> None:
    headers = [["Authorization", "Digest x"], ["Host", "shop"]]
    assert redact.cover(headers) == [["Authorization", COVER], ["Host", "shop"]]
    entries = [{"name": "X-Api-Key", "value": "x"}, {"name": "Host", "value": "shop"}]
    assert redact.cover(entries)[0]["value"] == COVER
    assert redact.cover(entries)[1]["value"] == "shop"


def test_without_a_signature_every_positional_value_is_covered() -> None:
    assert redact.cover_arguments([1, "x"], {"n": 1}, "") == ([COVER, COVER], {"n": 1})


def test_where_the_signature_ends_before_the_values_they_are_covered() -> None:
    assert redact.cover_arguments([1, 2], {}, "(a)")[0] == [1, COVER]
    assert redact.cover_arguments([1, 2], {}, "(a, *, b=1)")[0] == [1, COVER]
    cut = f"(a, b='{'x' * 600}', password='')"[:500]
    assert redact.cover_arguments([1, 2, 3], {}, cut)[0] == [1, COVER, COVER]


def test_what_goes_to_a_terminal_is_one_plain_line() -> None:
    assert redact.printable("mail\x1b[31m\nforged \u202e\ud800") == (
        "mail\\x1b[31m\\nforged \\u202e\\ud800"
    )
    assert redact.printable("Grüße 💌") == "Grüße 💌"


@pytest.mark.parametrize(
    "written",
    [
        *("SECRET_KEY_BASE=hunter2", "API_KEY2=hunter2", "TOKEN123=hunter2", "x\nTOKEN_1=hunter2"),
        *("DB_PASSWORD_PROD=hunter2", "AuthHeader=hunter2", "SecretValue='hunter2'"),
        *("STRIPE_API_KEY_LIVE: hunter2", "AWS_TOKEN_V1: hunter2"),
        "Environment:\n  SECRET_KEY_FALLBACK=hunter2",
        "Command '['curl', '-u', 'bob:hunter2', 'x']' returned non-zero exit status 22.",
        *("curl -ubob:hunter2 x", "curl --user bob:hunter2", 'run ["curl", "-u", "bob:hunter2"]'),
        *("postgres://app:2024/hunter2@db/x", "postgres://app:80?hunter2@db", "x://a:1hunter2"),
        *("smtp://ann@example.com:hunter2@mail.example.com", "https://ann:hunter2@shop.example/"),
        *("PGPASSWORD=hunter2", "pwd=hunter2", "dbpassword=hunter2", "privatekey=hunter2"),
        *("accesstoken: hunter2", "clientsecret=hunter2", "sessionid=hunter2"),
        *("mysql --password hunter2 -h db", "login --api-key hunter2"),
    ],
)
def test_secrets_of_usual_shapes_are_covered_wherever_they_stand(written: str) -> None:
    assert "hunter2" not in redact.cover_text(written)


@pytest.mark.parametrize(
    "written",
    [
        *("KeyError: 'email'", "SessionExpired: log in", "shop.errors.TokenExpired: log in again"),
        *("http://127.0.0.1:8000/me@home", "postgres://db:5432/shop", "redis://cache:6379"),
        *("ratio 3:4", "docker run --rm image", "--keyring x.gpg", "the monkey: banana"),
    ],
)
def test_what_only_looks_alike_stays_readable(written: str) -> None:
    assert redact.cover_text(written) == written


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["curl", "-u", "bob:x", "y"], ["curl", "-u", f"bob:{COVER}", "y"]),
        (["--password", "x", "y"], ["--password", COVER, "y"]),
        ({"Name": "Authorization", "Value": "x"}, {"Name": "Authorization", "Value": COVER}),
        ({"NAME": "token", "VALUE": "x"}, {"NAME": "token", "VALUE": COVER}),
        ({"key": "password", "values": ["x"]}, {"key": COVER, "values": COVER}),
    ],
)
def test_lists_of_words_and_of_headers_are_covered(value: Any, shown: Any) -> None:
    assert redact.cover(value) == shown
