"""What consumers send: what it asks for, and which field each refusal is about."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.api.deliveries import Pull, parse_pull
from app.api.transactions import Transaction, parse_transaction
from app.message.settlement import parse_extend, parse_nack, parse_receipts, parse_release
from subscriptions.domain.delivery import Nack
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import NewMessage
from subscriptions.domain.principal import Principal

Parse = Callable[[bytes], object]
INVALID = "invalid_request"
MALFORMED = "malformed_json"


def _id(value: Any) -> str:
    """The same in every process: a function's address is not."""
    return str(getattr(value, "__name__", repr(value)[:40]))


def encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def refusal(parse: Parse, body: object) -> tuple[str, str | None]:
    with pytest.raises(GaplessError) as caught:
        parse(encoded(body))
    errors = caught.value.errors
    return caught.value.code.value, errors[0].field if errors else None


@pytest.mark.parametrize(
    ("body", "pull"),
    [
        (b"", Pull(1, 0.0)),
        (b" { } ", Pull(1, 0.0)),
        ({"max": None, "wait": None}, Pull(1, 0.0)),
        ({"max": 1000, "wait": 30}, Pull(1000, 30.0)),
        ({"wait": 0.25}, Pull(1, 0.25)),
        ({"max": 1, "wait": 0}, Pull(1, 0.0)),
    ],
    ids=repr,
)
def test_pull(body: object, pull: Pull) -> None:
    assert parse_pull(encoded(body)) == pull


@pytest.mark.parametrize(
    ("body", "nack"),
    [
        ({}, Nack()),
        ({"delay": None, "dead_letter": None, "reason": None}, Nack()),
        ({"delay": 0}, Nack(0.0)),
        ({"delay": 604_800, "reason": "r" * 1000}, Nack(604_800.0, False, "r" * 1000)),
        ({"dead_letter": True, "reason": "Traceback\n  line 1"}, Nack(None, True, "Traceback\n  line 1")),
        ({"dead_letter": False, "delay": 1.5}, Nack(1.5)),
    ],
    ids=repr,
)
def test_nack(body: dict[str, Any], nack: Nack) -> None:
    assert parse_nack(encoded({"receipts": ["a", "b"], **body})) == (["a", "b"], nack)


@pytest.mark.parametrize(
    ("body", "delay"),
    [({}, None), ({"delay": None}, None), ({"delay": 0}, 0.0), ({"delay": 604_800}, 604_800.0)],
)
def test_release(body: dict[str, Any], delay: float | None) -> None:
    assert parse_release(encoded({"receipts": ["a", "b"], **body})) == (["a", "b"], delay)


@pytest.mark.parametrize(
    ("body", "ack_wait"), [({}, None), ({"ack_wait": None}, None), ({"ack_wait": 0.5}, 0.5)], ids=repr
)
def test_extend(body: dict[str, Any], ack_wait: float | None) -> None:
    assert parse_extend(encoded({"receipts": ["a"], **body})) == (["a"], ack_wait)


def test_receipts_are_given_as_they_came() -> None:
    receipts = ["", "a", "a", ":", "\n", "x" * 200, *(str(n) for n in range(994))]
    assert parse_receipts(encoded({"receipts": receipts})) == receipts


def test_transaction() -> None:
    body = {
        "publish": [
            {"channel": "a", "data": {"x": ":"}},
            {"channel": "b", "data": 1, "key": "k", "headers": {"h": "v"}, "delay": None},
        ],
        "ack": [{"subscription": "s", "receipts": ["1", "2"]}, {"subscription": "t", "receipts": ["3"]}],
    }
    messages = (
        NewMessage("a", b'{"x": ":"}', sender="ann"),
        NewMessage("b", b"1", key="k", headers=b'{"h":"v"}', sender="ann"),
    )
    acks = (("s", ["1", "2"]), ("t", ["3"]))
    ann = Principal("default", "ann")
    assert parse_transaction(encoded(body), ann) == Transaction(messages, acks)
    assert parse_transaction(encoded({"publish": body["publish"]}), ann) == Transaction(messages, ())
    assert parse_transaction(encoded({"publish": None, "ack": body["ack"]})) == Transaction((), acks)
    assert parse_transaction(encoded({"publish": [], "ack": body["ack"]})) == Transaction((), acks)


def test_transactions_to_the_limit() -> None:
    message = {"channel": "a", "data": 1}
    ack = {"subscription": "s", "receipts": ["r"] * 5000}
    both = parse_transaction(encoded({"publish": [message] * 10_000, "ack": [ack, ack]}))
    assert (len(both.messages), sum(len(receipts) for _, receipts in both.acks)) == (10_000, 10_000)


Wrong = list[tuple[object, str]]
SHAPES: list[object] = [[], 5, None, "x", True]


def each(member: str, *values: object) -> Wrong:
    return [({"receipts": ["a"], member: value}, member) for value in values]


BAD_RECEIPTS: Wrong = [
    ({}, "receipts"),
    ({"receipts": []}, "receipts"),
    ({"receipts": None}, "receipts"),
    ({"receipts": "a"}, "receipts"),
    ({"receipts": ["a"] * 1001}, "receipts"),
    ({"receipts": ["a", 5]}, "receipts[1]"),
    ({"receipts": ["a", "x" * 201]}, "receipts[1]"),
    ({"receipts": [None]}, "receipts[0]"),
    ({"receipts": [["a"]]}, "receipts[0]"),
    ({"receipts": ["a"], "x": 1}, "x"),
    *[(shape, "body") for shape in SHAPES],
]
BAD_COUNTS: list[object] = [0, -1, 1001, 1.5, 1.0, "5", True, [], 2**64 - 1]
BAD_WAITS: list[object] = [-0.1, 30.1, 1e300, "5", True, []]
BAD_PULLS: Wrong = [
    *[({"max": value}, "max") for value in BAD_COUNTS],
    *[({"wait": value}, "wait") for value in BAD_WAITS],
    ({"max": 1, "timeout": 5}, "timeout"),
    *[(shape, "body") for shape in SHAPES],
]
BAD_NACKS: Wrong = [
    *each("delay", -1, 604_800.1, "5", True, []),
    *each("dead_letter", 1, "true", {}),
    *each("reason", "r" * 1001, 5, []),
    ({"receipts": ["a"], "delay": 0, "dead_letter": True}, "delay"),
    ({"receipts": ["a"], "ack_wait": 5}, "ack_wait"),
    *BAD_RECEIPTS,
]
BAD_RELEASES: Wrong = [
    *each("delay", -1, 604_800.1, "5", True, []),
    *each("reason", "why"),
    *BAD_RECEIPTS,
]
BAD_EXTENDS: Wrong = [
    *each("ack_wait", 0, -0.0, -1, 86_400.1, "5", True),
    ({"receipts": ["a"], "delay": 5}, "delay"),
    *BAD_RECEIPTS,
]
ACK: dict[str, Any] = {"subscription": "s", "receipts": ["r"]}
MESSAGE: dict[str, Any] = {"channel": "a", "data": 1}
BAD_TRANSACTIONS: Wrong = [
    *[(body, "body") for body in ({}, {"publish": []}, {"publish": None, "ack": []}, *SHAPES)],
    ({"publish": [MESSAGE], "ack": [ACK], "x": 1}, "x"),
    ({"publish": [MESSAGE] * 10_001}, "publish"),
    ({"publish": MESSAGE}, "publish"),
    ({"publish": [MESSAGE, {"data": 1}]}, "publish[1].channel"),
    ({"publish": [MESSAGE, {"channel": "a..b", "data": 1}]}, "publish[1].channel"),
    ({"publish": [{"channel": "a"}]}, "publish[0].data"),
    ({"publish": [{**MESSAGE, "id": 1}]}, "publish[0].id"),
    ({"publish": [{**MESSAGE, "delay": 0}]}, "publish[0].delay"),
    ({"publish": [{**MESSAGE, "deliver_at": "2030-01-01T00:00:00Z"}]}, "publish[0].deliver_at"),
    ({"publish": [{**MESSAGE, "ephemeral": True}]}, "publish[0].ephemeral"),
    ({"ack": ACK}, "ack"),
    ({"ack": [ACK, {"receipts": ["r"]}]}, "ack[1].subscription"),
    ({"ack": [{**ACK, "subscription": ""}]}, "ack[0].subscription"),
    ({"ack": [ACK, {**ACK, "subscription": "a b"}]}, "ack[1].subscription"),
    ({"ack": [{**ACK, "subscription": "*"}]}, "ack[0].subscription"),
    ({"ack": [{**ACK, "receipts": []}]}, "ack[0].receipts"),
    ({"ack": [{**ACK, "receipts": ["a", 5]}]}, "ack[0].receipts[1]"),
    ({"ack": [{**ACK, "reason": "x"}]}, "ack[0].reason"),
    ({"ack": [{**ACK, "receipts": ["r"] * 10_001}]}, "ack[0].receipts"),
    ({"ack": [{**ACK, "receipts": ["r"] * 5001}] * 2}, "ack"),
    ({"ack": [ACK] * 10_001}, "ack"),
]
BAD = [
    *[(parse_receipts, body, field) for body, field in BAD_RECEIPTS],
    *[(parse_pull, body, field) for body, field in BAD_PULLS],
    *[(parse_nack, body, field) for body, field in BAD_NACKS],
    *[(parse_release, body, field) for body, field in BAD_RELEASES],
    *[(parse_extend, body, field) for body, field in BAD_EXTENDS],
    *[(parse_transaction, body, field) for body, field in BAD_TRANSACTIONS],
]


@pytest.mark.parametrize(("parse", "body", "field"), BAD, ids=_id)
def test_bad_members(parse: Parse, body: object, field: str) -> None:
    assert refusal(parse, body) == (INVALID, field)


TEXTS: list[tuple[bytes, str]] = [
    (b"{", MALFORMED),
    (b"{}{}", MALFORMED),
    (b"\xef\xbb\xbf{}", MALFORMED),
    (b'{"receipts":["a"],"receipts":["a"]}', MALFORMED),
    (b'{"receipts":["a"],"recei\\u0070ts":["a"]}', MALFORMED),
    (b'{"receipts":["\xff"]}', MALFORMED),
    (b'{"receipts":["\x00"]}', MALFORMED),
    (b'{"receipts":["\\u0000"]}', INVALID),
    (b'{"receipts":["\\ud800"]}', INVALID),
    (b'{"receipts":[NaN]}', INVALID),
    (b'{"receipts":' + b"[" * 100_000 + b"]" * 100_000 + b"}", INVALID),
    (b'{"receipts":["a"],"x":' + b"9" * 5000 + b"}", INVALID),
]


@pytest.mark.parametrize(
    "parse", [parse_pull, parse_receipts, parse_nack, parse_release, parse_extend, parse_transaction]
)
@pytest.mark.parametrize(("text", "code"), TEXTS, ids=_id)
def test_bad_texts(parse: Parse, text: bytes, code: str) -> None:
    assert refusal(parse, text)[0] == code


@pytest.mark.parametrize(
    "text",
    [
        b'{"publish":[],"publish":[{"channel":"a","data":1}]}',
        b'{"publish":[{"channel":"a","data":1,"channel":"b"}]}',
        b'{"publish":[{"channel":"a","data":{"x":1,"x":2}}]}',
        b'{"ack":[{"subscription":"s","receipts":["a"],"subscription":"t"}]}',
    ],
)
def test_no_key_is_repeated_in_a_transaction(text: bytes) -> None:
    assert refusal(parse_transaction, text)[0] == MALFORMED


def test_a_message_that_is_too_large() -> None:
    body = {"publish": [MESSAGE, {"channel": "a", "data": "x" * (1024 * 1024)}]}
    assert refusal(parse_transaction, body) == ("payload_too_large", "publish[1].data")
