"""What is built for NOTIFY is read back as the same message; nothing else is a message."""

import json

import pytest

from jobqueue.notifications import (
    Cancel,
    Died,
    LeaderVacant,
    Paused,
    Ready,
    Resumed,
    Scheduled,
    encode,
    parse,
)

MESSAGES = [
    (Ready("mail"), {"kind": "ready", "queue": "mail"}),
    (Ready("mail", -3), {"kind": "ready", "queue": "mail", "priority": -3}),
    (Paused("mail"), {"kind": "paused", "queue": "mail"}),
    (Resumed("mail"), {"kind": "resumed", "queue": "mail"}),
    (Scheduled(12.5), {"kind": "scheduled", "at": 12.5}),
    (Cancel("6d0f"), {"kind": "cancel", "worker": "6d0f"}),
    (LeaderVacant(), {"kind": "leader"}),
    (Died("6d0f"), {"kind": "died", "worker": "6d0f"}),
]


@pytest.mark.parametrize(("message", "payload"), MESSAGES)
def test_each_kind_has_its_payload_and_is_read_back(message, payload) -> None:
    assert json.loads(encode(message)) == payload
    assert parse(encode(message)) == message


def test_a_kind_without_an_addressee_concerns_all() -> None:
    assert parse('{"kind": "ready"}') == Ready(None)
    assert parse('{"kind": "ready", "queue": 7, "priority": 1}') == Ready(None)
    assert parse('{"kind": "resumed"}') == Resumed(None)
    assert parse('{"kind": "cancel", "worker": 5}') == Cancel(None)


@pytest.mark.parametrize(
    "payload",
    ["", "no json", "[" * 7900, "[]", "null", '"ready"', '{"kind": 5}', '{"kind": "newer"}']
    + [f'{{"kind": "scheduled", "at": {at}}}' for at in ("1e400", "NaN", "9" * 400, '"x"')],
)
def test_whatever_is_not_understood_is_no_message(payload) -> None:
    assert parse(payload) is None
