"""Publish bodies: what becomes a message, and which field each refusal is about."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from app.message import limits
from app.message.head import Form, PublishHead
from app.message.publish import Publication, Schedule, parse_batch, parse_publication
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import NewMessage
from subscriptions.domain.principal import Action, Grant, Principal

HEAD = PublishHead(Form.JSON, "application/json", False, None, None, None, {})
NOW_US = 1_795_000_000_000_000


def publish(body: object, channel: str = "chat") -> Publication:
    return parse_publication(
        channel, HEAD, body if isinstance(body, bytes) else json.dumps(body).encode(), now_us=NOW_US
    )


def refusal(body: object, channel: str = "chat") -> tuple[str, str | None]:
    with pytest.raises(GaplessError) as caught:
        publish(body, channel)
    errors = caught.value.errors
    return caught.value.code.value, errors[0].field if errors else None


def test_data_is_kept_as_sent_on_one_line() -> None:
    body = b'{"data": {"a":\r\n 1.50, "b":"x\\ny"} }'
    assert publish(body).messages == (NewMessage("chat", b'{"a":   1.50, "b":"x\\ny"}'),)


def test_every_member() -> None:
    body = {
        "data": [1],
        "type": "t" * 128,
        "key": "k" * 255,
        "headers": {"x": "y"},
        "ttl": 1,
        "ephemeral": True,
    }
    publication = publish(body)
    assert publication == Publication(
        (NewMessage("chat", b"[1]", None, "t" * 128, "k" * 255, b'{"x":"y"}', 1.0, True, None),), False
    )
    assert publication.ephemeral


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"data": None}, NewMessage("chat", b"null")),
        ({"data": ":"}, NewMessage("chat", b'":"')),
        ({"data": 0, "key": None, "ttl": None, "delay": None, "deliver_at": None}, NewMessage("chat", b"0")),
        ({"data_base64": "AP8="}, NewMessage("chat", None, b"\x00\xff")),
        ({"data_base64": ""}, NewMessage("chat", None, b"")),
        ({"data": 1, "headers": {}, "key": ""}, NewMessage("chat", b"1", key="")),
        ({"data": 1, "ttl": 315_360_000, "ephemeral": False}, NewMessage("chat", b"1", ttl=315_360_000.0)),
        ({"data": 1, "key": "zoë \u200d 👩\u200d🚀"}, NewMessage("chat", b"1", key="zoë \u200d 👩\u200d🚀")),
    ],
)
def test_good(body: object, expected: NewMessage) -> None:
    assert publish(body).messages == (expected,)


BAD_HEADERS: list[Any] = [None, [], "x", {"": "x"}, {"a\nb": "x"}]
BAD_MEMBERS: list[tuple[dict[str, Any], str]] = [
    ({"data": 1, "x": 1}, "x"),
    *[
        ({"data": 1, name: 1}, name)
        for name in ("id", "seq", "created_at", "sender", "channel", "expires_at")
    ],
    ({}, "data"),
    ({"data": 1, "data_base64": ""}, "data_base64"),
    *[({"data_base64": text}, "data_base64") for text in ("AP8", "*", "AP_-", None, 1)],
    *[({"data": 1, "type": value}, "type") for value in ("", "t" * 129, "a\nb", "a\x00", "\x85", None, 1)],
    *[({"data": 1, "key": value}, "key") for value in ("k" * 256, "a\r", "\x7f", 1, ["k"])],
    *[({"data": 1, "ttl": value}, "ttl") for value in (0, -1, 1e30, "5", True, 315_360_001)],
    *[({"data": 1, "ephemeral": value}, "ephemeral") for value in (1, "true", None)],
    *[({"data": 1, "headers": value}, "headers") for value in BAD_HEADERS],
    ({"data": 1, "headers": {"a": "x\r\ny"}}, "headers.a"),
    ({"data": 1, "headers": {"a": 1}}, "headers[...]"),
    ({"data": 1, "headers": {f"h{i}": "" for i in range(65)}}, "headers"),
    ({"data": 1, "headers": {"a": "é" * 4096}}, "headers"),
    ({"data": 1, "delay": -1}, "delay"),
    ({"data": 1, "delay": 315_360_001}, "delay"),
    *[({"data": 1, "deliver_at": value}, "deliver_at") for value in ("2026-11-20T12:00:00", "soon", 5)],
    ({"data": 1, "delay": 5, "deliver_at": "2026-11-20T12:00:00Z"}, "deliver_at"),
    ({"data": 1, "delay": 5, "ephemeral": True}, "delay"),
]


@pytest.mark.parametrize(("body", "field"), BAD_MEMBERS, ids=repr)
def test_bad_members_alone_in_an_array_and_in_a_batch(body: dict[str, Any], field: str) -> None:
    code = "invalid_request"
    assert refusal(body) == (code, field)
    assert refusal([{"data": 1}, body]) == (
        code,
        f"[1].{field}" if "headers[" not in field else "[1].headers[...]",
    )
    if "channel" in body:
        return
    messages = [{"channel": "a", "data": 1}, {"channel": "b", **body}]
    with pytest.raises(GaplessError) as caught:
        parse_batch(HEAD, json.dumps({"messages": messages}).encode())
    assert (caught.value.code, caught.value.errors[0].field) == (code, f"messages[1].{field}")
    assert caught.value.detail.startswith(f"messages[1].{field}: ")


@pytest.mark.parametrize(
    ("asked", "schedule"),
    [
        ({}, None),
        ({"delay": None, "deliver_at": None}, None),
        ({"delay": 0}, Schedule(None, 0.0)),
        ({"delay": 5, "ttl": 4}, Schedule(None, 5.0)),
        ({"delay": 0.5, "deliver_at": None, "ephemeral": False}, Schedule(None, 0.5)),
        ({"deliver_at": "1970-01-01T00:00:00.000001Z"}, Schedule(1, None)),
        ({"deliver_at": "2026-11-20T13:00:00.123456+01:00"}, Schedule(1795176000123456, None)),
        ({"deliver_at": "0001-01-01T00:00:00+14:00"}, Schedule(0, None)),
    ],
    ids=repr,
)
def test_when_a_single_message_is_due(asked: dict[str, Any], schedule: Schedule | None) -> None:
    assert publish({"data": 1, **asked}).schedules == (() if schedule is None else (schedule,))


@pytest.mark.parametrize("asked", [{"delay": 5}, {"delay": 0}, {"deliver_at": "2026-11-20T12:00:00Z"}])
def test_several_messages_are_scheduled_all_or_none(asked: dict[str, Any]) -> None:
    (field,) = asked
    assert len(publish([{"data": 1, **asked}, {"data": 2, "delay": 7}]).schedules) == 2
    assert refusal([{"data": 1, **asked}, {"data": 2}]) == ("invalid_request", "[1].deliver_at")
    ephemeral = {"data": 1, "ephemeral": True, **asked}
    assert refusal([{"data": 1, "delay": 1}, ephemeral]) == ("invalid_request", f"[1].{field}")
    with pytest.raises(GaplessError, match="is for messages to one channel") as caught:
        parse_batch(HEAD, json.dumps({"messages": [{"channel": "a", "data": 1, **asked}]}).encode())
    assert caught.value.errors[0].field == f"messages[0].{field}"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"data":1,"data":2}', "malformed_json"),
        (b'{"data":{"a":1,"a":2}}', "malformed_json"),
        (b'{"data":1,"headers":{"a":"1","a":"2"}}', "malformed_json"),
        (b'[{"data":1},{"data":1,"key":"a","key":":"}]', "malformed_json"),
        (b'{"data":"\xff"}', "malformed_json"),
        (b'{"data":1}]', "malformed_json"),
        (b'{"type":5,', "malformed_json"),
        (b'{"data":"\\x"}', "malformed_json"),
        (b"", "malformed_json"),
        (b'{"data":"\\u0000"}', "invalid_request"),
        (b'{"data":"\\ud800"}', "invalid_request"),
        (b'{"data":NaN}', "invalid_request"),
        (b'{"data":1e400}', "invalid_request"),
        (b'{"data":' + b"9" * 5000 + b"}", "invalid_request"),
        (b'{"data":' + b"[" * 33 + b"]" * 33 + b"}", "invalid_request"),
        (b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_request"),
        (b'{"data":1,"key":"\\u0000"}', "invalid_request"),
        (b"5", "invalid_request"),
        (b"null", "invalid_request"),
        (b"[]", "invalid_request"),
        (b"[5]", "invalid_request"),
        (b"[[]]", "invalid_request"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_bodies(body: bytes, code: str) -> None:
    assert refusal(body)[0] == code


def test_depth_counts_within_the_data() -> None:
    deep = b"[" * 32 + b"]" * 32
    assert publish(b'[{"data":' + deep + b"}]").messages[0].data == deep


@pytest.mark.parametrize("field", ["data", "data_base64"])
def test_message_size(field: str) -> None:
    def body(size: int) -> dict[str, str]:
        text = "x" * (size - 2) if field == "data" else base64.b64encode(b"x" * size).decode()
        return {field: text}

    assert publish(body(1024 * 1024))
    assert refusal(body(1024 * 1024 + 1)) == ("payload_too_large", field)
    assert refusal([{"data": 1}, body(1024 * 1024 + 1)]) == ("payload_too_large", f"[1].{field}")


def test_headers_to_the_limit() -> None:
    assert publish({"data": 1, "headers": {f"h{i:02}": "" for i in range(64)}})
    assert publish({"data": 1, "headers": {"aa": '"' * 8190}})


def test_arrays() -> None:
    assert publish([{"data": 1}]).is_array
    assert len(publish([{"data": n} for n in range(1000)]).messages) == 1000
    assert refusal([{"data": 1}] * 1001)[0] == "invalid_request"
    assert refusal([{"data": 1, "ephemeral": True}]) == ("invalid_request", "[0].ephemeral")


def test_the_channel_is_checked() -> None:
    assert refusal({"data": 1}, "a..b") == ("invalid_request", "channel")


def test_batch() -> None:
    body = {
        "messages": [{"channel": "a", "data": ":"}, {"channel": "b", "data": None, "headers": {"x": "y"}}]
    }
    assert parse_batch(HEAD, json.dumps(body).encode(), Principal("default", "ann")) == (
        NewMessage("a", b'":"', sender="ann"),
        NewMessage("b", b"null", headers=b'{"x":"y"}', sender="ann"),
    )


def test_who_moderates_a_channel_changes_what_others_sent_there() -> None:
    grants = (
        Grant(frozenset({Action.PUBLISH}), channels=(">",)),
        Grant(frozenset({Action.MODERATE}), channels=("b",)),
    )
    edit = {"data": 1, "target": 1, "action": "update"}
    body = json.dumps({"messages": [{"channel": "a", **edit}, {"channel": "b", **edit}]}).encode()
    for who, wanted in (
        (Principal("default", "ann", grants), [False, True]),
        (Principal("default"), [True, True]),
    ):
        found = [message.change for message in parse_batch(HEAD, body, who)]
        assert [change and change.moderates for change in found] == wanted


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"messages": []}, "invalid_request", "messages"),
        ({}, "invalid_request", "messages"),
        ([], "invalid_request", "body"),
        ({"messages": [{"data": 1}]}, "invalid_request", "messages[0].channel"),
        ({"messages": [{"data": 1, "channel": "a..b"}]}, "invalid_request", "messages[0].channel"),
        ({"messages": [{"data": 1, "channel": "a"}], "x": 1}, "invalid_request", "x"),
        (
            {"messages": [{"data": 1, "channel": "a", "ephemeral": True}]},
            "invalid_request",
            "messages[0].ephemeral",
        ),
        ({"messages": [{"data": 1, "channel": "a"}] * 1001}, "invalid_request", "messages"),
        (b'{"messages":[{"data":1,"channel":"a","channel":"b"}]}', "malformed_json", None),
        (b'{"messages":[],"messages":[{"data":1,"channel":"a"}]}', "malformed_json", None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_batches(body: object, code: str, field: str | None) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(GaplessError) as caught:
        parse_batch(HEAD, raw)
    errors = caught.value.errors
    assert (caught.value.code.value, errors[0].field if errors else None) == (code, field)


def test_batch_takes_no_cloudevents() -> None:
    with pytest.raises(GaplessError) as caught:
        parse_batch(PublishHead(Form.EVENT, "", False, None, None, None, {}), b"{}")
    assert caught.value.code is Code.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", ["", ".", "a..b", "a*", "a\u0000"])
def test_every_channel_of_a_batch_is_checked(place: int, name: str) -> None:
    messages: list[dict[str, Any]] = [{"channel": "good", "data": number} for number in range(2)]
    messages[place]["channel"] = name
    with pytest.raises(GaplessError) as refused:
        parse_batch(HEAD, json.dumps({"messages": messages}).encode())
    assert refused.value.errors[0].field == f"messages[{place}].channel"


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({"ephemeral": True}, 400, None),
        ({"delay": 1}, None, "delay"),
        ({"deliver_at": "2026-11-21T08:00:00Z"}, None, "deliver_at"),
    ],
)
def test_an_expected_seq_is_only_for_messages_that_are_stored_now(
    asked: dict[str, Any], status: int | None, field: str | None
) -> None:
    head = PublishHead(Form.JSON, "application/json", False, None, None, 3, {})
    with pytest.raises(GaplessError) as caught:
        parse_publication("chat", head, json.dumps({"data": 1, **asked}).encode(), now_us=NOW_US)
    assert (caught.value.code, caught.value.status) == (Code.INVALID_REQUEST, status)
    assert [error.field for error in caught.value.errors] == ([] if field is None else [field])


def test_a_time_is_at_most_ten_years_ahead() -> None:
    body = json.dumps({"data": 1, "deliver_at": "2036-01-01T00:00:00Z"}).encode()
    at_us = 2_082_758_400_000_000
    earliest_us = at_us - limits.MAX_TTL_S * 1_000_000
    found = parse_publication("chat", HEAD, body, now_us=earliest_us)
    assert found.schedules == (Schedule(at_us, None),)
    with pytest.raises(GaplessError) as caught:
        parse_publication("chat", HEAD, body, now_us=earliest_us - 1)
    assert caught.value.errors[0].field == "deliver_at"
