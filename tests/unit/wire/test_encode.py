"""The message JSON: exact members, order, times; always one line."""

from __future__ import annotations

import json

import pytest

from app.message.message import encode_message, encode_positions
from app.message.times import rfc3339
from subscriptions.domain.model import Message, Position

AT_US = 1_795_176_000_123_456
MESSAGE = Message(1042, "chat.lobby", 17, "message", None, b'{"a":1}', None, b"", None, AT_US, None)


def test_null_members_are_left_out() -> None:
    assert encode_message(MESSAGE) == (
        b'{"id":1042,"channel":"chat.lobby","seq":17,"type":"message","data":{"a":1},'
        b'"created_at":"2026-11-20T12:00:00.123456Z"}'
    )
    assert encode_message(MESSAGE._replace(headers=b"{}")) == encode_message(MESSAGE)


def test_every_member() -> None:
    full = MESSAGE._replace(
        key='u"7',
        headers=b'{"x":"y"}',
        sender="zo\u00eb",
        expires_at_us=AT_US + 60_000_000,
        data=b"null",
    )
    assert json.loads(encode_message(full)) == {
        "id": 1042,
        "channel": "chat.lobby",
        "seq": 17,
        "type": "message",
        "key": 'u"7',
        "data": None,
        "headers": {"x": "y"},
        "sender": "zo\u00eb",
        "created_at": "2026-11-20T12:00:00.123456Z",
        "expires_at": "2026-11-20T12:01:00.123456Z",
    }


def test_binary_travels_as_base64() -> None:
    decoded = json.loads(encode_message(MESSAGE._replace(data=None, binary=b"\x00\xff")))
    assert decoded["data_base64"] == "AP8="
    assert "data" not in decoded


@pytest.mark.parametrize(
    ("at_us", "text"),
    [
        (0, b"1970-01-01T00:00:00.000000Z"),
        (1, b"1970-01-01T00:00:00.000001Z"),
        (-1, b"1969-12-31T23:59:59.999999Z"),
        (1_709_164_800_000_000, b"2024-02-29T00:00:00.000000Z"),
    ],
)
def test_times(at_us: int, text: bytes) -> None:
    assert rfc3339(at_us) == text


def test_position() -> None:
    assert json.loads(encode_positions([Position(5, "a.b", 2, AT_US)])) == {
        "id": 5,
        "channel": "a.b",
        "seq": 2,
        "created_at": "2026-11-20T12:00:00.123456Z",
    }
