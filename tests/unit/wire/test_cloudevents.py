"""CloudEvents in three modes: nothing is lost on the way in and out, and the SDK reads what we write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.message.cloudevents import to_cloudevent
from app.message.head import Form, PublishHead, read_head
from app.message.publish import parse_publication
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Message, NewMessage

AT_US = 1_795_176_000_123_456
EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "A234-1234-1234",
    "source": "https://example.org/orders?x=1#y",
    "type": "org.example.order.created",
    "subject": "zoë \U0001f680",
    "time": "2026-04-05T17:31:00.123456789+02:00",
    "dataschema": "urn:schema:7",
    "partitionkey": "user-7",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "data": {"a": [1, None]},
}


def head(form: Form = Form.EVENT, media_type: str = "", event: dict[str, bytes] | None = None) -> PublishHead:
    return PublishHead(form, media_type, False, None, None, None, event or {})


def parse(event: object, form: Form = Form.EVENT) -> tuple[NewMessage, ...]:
    return parse_publication("chat.lobby", head(form), json.dumps(event).encode(), now_us=0).messages


def stored(new: NewMessage) -> Message:
    return Message(
        1042, new.channel, 17, new.type, new.key, new.data, new.binary, new.headers, new.sender, AT_US, None
    )


def back(new: NewMessage) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(to_cloudevent(stored(new)))
    return event


def refusal(event: object) -> str:
    with pytest.raises(GaplessError) as caught:
        parse(event)
    return caught.value.errors[0].field


def test_structured_mode_comes_back_whole() -> None:
    (message,) = parse(EVENT)
    assert (message.type, message.key, message.data) == (EVENT["type"], "user-7", b'{"a": [1, null]}')
    assert json.loads(message.headers)["ce-id"] == "A234-1234-1234"
    came_back = back(message)
    assert {name: came_back[name] for name in EVENT} == EVENT
    assert set(came_back) - set(EVENT) == {
        "datacontenttype", "sequence", "gaplessid", "gaplesschannel", "gaplessseq",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"datacontenttype": "text/xml", "data": "<a/>"},
        {"datacontenttype": "application/vnd.x+json; charset=utf-8"},
        {"sequence": "own-0001"},
        {"comexampleextension": "v", "othervalue": ""},
    ],
)
def test_other_attributes_come_back(change: dict[str, Any]) -> None:
    event = EVENT | change
    came_back = back(parse(event)[0])
    assert {name: came_back[name] for name in event} == event


def test_canonical_text_of_numbers_and_booleans() -> None:
    came_back = back(parse(EVENT | {"one": 1, "yes": True, "no": False})[0])
    assert (came_back["one"], came_back["yes"], came_back["no"]) == ("1", "true", "false")


def test_binary_data_and_absent_data() -> None:
    del (event := dict(EVENT))["data"]
    assert parse(event)[0].data == b"null"
    (message,) = parse(event | {"data_base64": "AP8=", "datacontenttype": "image/png"})
    assert (message.data, message.binary) == (None, b"\x00\xff")
    came_back = back(message)
    assert (came_back["data_base64"], came_back["datacontenttype"]) == ("AP8=", "image/png")
    assert "data" not in came_back
    assert parse(event | {"data": 1, "data_base64": None, "subject": None})[0].data == b"1"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *[({name: None}, name) for name in ("specversion", "id", "source", "type")],
        *[({name: ""}, name) for name in ("id", "source", "type", "subject", "dataschema", "partitionkey")],
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": 1.0}, "specversion"),
        *[({"time": value}, "time") for value in ("", "now", "2026-02-30T00:00:00Z", "2026-01-01")],
        *[({name: "x"}, name) for name in ("Upper", "under_score", "da-sh", "é", "")],
        ({"ext": {"a": 1}}, "ext"),
        ({"ext": 1.5}, "ext"),
        ({"data_base64": "AP8="}, "data_base64"),
        ({"type": "t" * 129}, "type"),
        ({"subject": "a\r\nb"}, "headers.ce-subject"),
    ],
    ids=repr,
)  # fmt: skip
def test_bad_attributes(change: dict[str, Any], field: str) -> None:
    assert refusal(EVENT | change) == field


@pytest.mark.parametrize("event", [[], "x", None, [EVENT]])
def test_not_an_event(event: object) -> None:
    assert refusal(event) == "body"


def test_batches() -> None:
    assert [m.data for m in parse([EVENT, EVENT | {"data": 2}], Form.EVENTS)] == [b'{"a": [1, null]}', b"2"]
    for wrong, field in (
        ([], "body"),
        ([EVENT] * 1001, "body"),
        (EVENT, "body"),
        ([EVENT, {}], "[1].specversion"),
    ):
        with pytest.raises(GaplessError) as caught:
            parse(wrong, Form.EVENTS)
        assert caught.value.errors[0].field == field


BINARY = {
    "specversion": b"1.0", "id": b"1", "source": b"/s", "type": b"t", "subject": b"zo%C3%AB%20%25",
    "partitionkey": b"k",
}  # fmt: skip


@pytest.mark.parametrize(
    ("media_type", "body", "data", "binary"),
    [
        ("application/json", b'{"a":\n1}', b'{"a": 1}', None),
        ("application/vnd.x+json", b"1", b"1", None),
        ("text/plain; charset=utf-8", b"hi", None, b"hi"),
        ("image/png", b"\x00\xff", None, b"\x00\xff"),
        ("", b"", b"null", None),
    ],
)
def test_binary_mode(media_type: str, body: bytes, data: bytes | None, binary: bytes | None) -> None:
    publication = parse_publication("chat", head(Form.BINARY_EVENT, media_type, BINARY), body, now_us=0)
    (message,) = publication.messages
    assert not publication.is_array
    assert (message.data, message.binary, message.type, message.key) == (data, binary, "t", "k")
    came_back = back(message)
    assert (came_back["subject"], came_back["source"]) == ("zoë %", "/s")
    if media_type:
        assert came_back["datacontenttype"] == media_type


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (BINARY | {"subject": b"%ff"}, b"1"),
        (BINARY | {"subject": b"\xff"}, b"1"),
        (BINARY | {"a-b": b"x"}, b"1"),
        (BINARY | {"data": b"x"}, b"1"),
        (BINARY | {"subject": b"a%0d%0ab"}, b"1"),
        (BINARY, b'{"a":1,"a":2}'),
        ({"specversion": b"1.0"}, b"1"),
    ],
)
def test_bad_binary_mode(event: dict[str, bytes], body: bytes) -> None:
    with pytest.raises(GaplessError):
        parse_publication("chat", head(Form.BINARY_EVENT, "application/json", event), body, now_us=0)


def test_a_plain_message_as_an_event() -> None:
    message = Message(
        5, "a.b", 3, "message", None, b"1", None, b'{"ce-type":"no","x y":"z"}', "ann", AT_US, None
    )
    assert json.loads(to_cloudevent(message)) == {
        "specversion": "1.0",
        "type": "message",
        "id": "5",
        "source": "/channels/a.b",
        "time": "2026-11-20T12:00:00.123456Z",
        "datacontenttype": "application/json",
        "sequence": "0000000000000003",
        "gaplessid": "5",
        "gaplesschannel": "a.b",
        "gaplessseq": "3",
        "gaplesssender": "ann",
        "gaplessheaders": '{"ce-type":"no","x y":"z"}',
        "data": 1,
    }
    assert json.loads(to_cloudevent(message._replace(data=None, binary=b"\xff")))["data_base64"] == "/w=="


def test_what_we_wrote_can_be_published_again() -> None:
    first = to_cloudevent(stored(parse(EVENT)[0]))
    (again,) = parse_publication("other", head(), first, now_us=0).messages
    came_back = back(again)
    assert {name: came_back[name] for name in EVENT} == EVENT
    assert came_back["gaplesschannel"] == "other"


def test_sequences_compare_as_strings() -> None:
    message = stored(parse(EVENT)[0])
    texts = [
        json.loads(to_cloudevent(message._replace(seq=seq)))["sequence"] for seq in (1, 9, 10, 2**53 - 1)
    ]
    assert texts == sorted(texts)


def test_the_official_sdk_agrees() -> None:
    """An independent check in both directions; left out where the SDK is not installed."""
    v1 = pytest.importorskip("cloudevents.core.v1.event")
    http = pytest.importorskip("cloudevents.core.bindings.http")
    attributes = {name: value for name, value in EVENT.items() if name not in ("data", "time")}
    sent = v1.CloudEvent(attributes=attributes, data=EVENT["data"])
    for write in (http.to_structured_event, http.to_binary_event):
        request = write(sent)
        headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        (message,) = parse_publication("chat", read_head(headers), bytes(request.body), now_us=0).messages
        answer = http.HTTPMessage(
            {"content-type": "application/cloudevents+json"}, to_cloudevent(stored(message))
        )
        received = http.from_http_event(answer)
        assert received.get_data() == sent.get_data()
        for name in attributes:
            assert received.get_attributes()[name] == attributes[name]
