"""What publishing puts on the wire, and that a retry is the same publish."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from gapless import (
    HeadMismatch,
    IdempotencyMismatch,
    NewMessage,
    ProtocolError,
    Published,
    RetryPolicy,
    Unauthenticated,
    Unavailable,
    Unreachable,
)

from tests.client.faces import Face
from tests.client.model import problem
from tests.client.raw_server import RawServer, answer, replies

STORED = {"id": 1042, "channel": "chat.lobby", "seq": 17, "created_at": "2026-11-20T12:00:00.123456Z"}
AT = datetime(2026, 11, 20, 12, 0, 0, 123456, UTC)

Step = httpx.Response | Exception


class Script:
    """Answers the requests in turn and keeps them."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        step = self.steps[len(self.requests) - 1]
        if isinstance(step, Exception):
            raise step
        # A response can be read once only, and the same one may answer both faces.
        return httpx.Response(step.status_code, content=step.content, headers=step.headers)

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)

    def header(self, name: str) -> list[str | None]:
        return [request.headers.get(name) for request in self.requests]


def created(body: Any = STORED, **headers: str) -> httpx.Response:
    return httpx.Response(201, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


def refused(status: int, code: str, **headers: str) -> httpx.Response:
    names = {k.replace("_", "-"): v for k, v in headers.items()}
    return httpx.Response(status, json=problem(status, code), headers=names)


def test_a_message_is_sent_as_the_protocol_says(face: Face) -> None:
    script = Script(created())
    face.connect(handler=script, token="secret-token")
    published = face.call(
        "publish",
        "chat.lobby",
        {"text": "héllo"},
        type="note",
        key="user-7",
        headers={"a": "b"},
        ttl=60,
        expected_last_seq=16,
    )
    assert published == Published(1042, "chat.lobby", 17, AT)
    request = script.requests[0]
    assert (request.method, request.url.path) == ("POST", "/v1/channels/chat.lobby/messages")
    assert script.body == {
        "data": {"text": "héllo"}, "type": "note", "key": "user-7", "headers": {"a": "b"}, "ttl": 60,
    }  # fmt: skip
    assert request.headers["authorization"] == "Bearer secret-token"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == "key-1"
    assert request.headers["expected-last-seq"] == "16"
    assert request.headers["user-agent"].startswith("gapless-python/")


@pytest.mark.parametrize("data", [None, 0, False, "", [], {}, 1.5, "text", [1, {"a": None}]])
def test_any_json_value_is_data(face: Face, data: Any) -> None:
    script = Script(created())
    face.connect(handler=script)
    face.call("publish", "a", data)
    assert script.body == {"data": data}
    assert "authorization" not in script.requests[0].headers


@pytest.mark.parametrize("data", [b"\0\xff", bytearray(b"\0\xff"), memoryview(b"\0\xff")])
def test_bytes_travel_as_base64(face: Face, data: Any) -> None:
    script = Script(created())
    face.connect(handler=script)
    face.call("publish", "a", data)
    assert script.body == {"data_base64": "AP8="}


def test_several_messages_are_one_array(face: Face) -> None:
    script = Script(created({"messages": [STORED, {**STORED, "id": 1043, "seq": 18}]}))
    face.connect(handler=script)
    published = face.call(
        "publish_many", "chat.lobby", [{"data": 1}, NewMessage(b"x", key="k")], expected_last_seq=0
    )
    assert script.body == [{"data": {"data": 1}}, {"data_base64": "eA==", "key": "k"}]
    assert script.requests[0].headers["expected-last-seq"] == "0"
    assert [one.id for one in published] == [1042, 1043]


def test_several_channels_are_one_request(face: Face) -> None:
    script = Script(created({"messages": [STORED, STORED]}))
    face.connect(handler=script)
    face.call("publish_all", [("a", 1), ("b", NewMessage(2, type="t"))], idempotency_key="mine")
    assert script.requests[0].url.path == "/v1/messages"
    assert script.body == {
        "messages": [{"channel": "a", "data": 1}, {"channel": "b", "data": 2, "type": "t"}]
    }
    assert script.header("idempotency-key") == ["mine"]


PASSING: list[Step] = [
    httpx.ConnectError("refused"),
    httpx.ReadTimeout(""),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("disconnected"),
    refused(503, "unavailable"),
    refused(500, "internal"),
    refused(429, "rate_limited"),
]


def test_every_attempt_is_the_same_request_under_one_key(face: Face) -> None:
    script = Script(*PASSING, created(idempotent_replayed="true"))
    face.connect(handler=script)
    published = face.call("publish", "chat.lobby", {"a": 1})
    assert published.replayed
    assert script.header("idempotency-key") == ["key-1"] * 8
    assert len({request.content for request in script.requests}) == 1
    # Full jitter with the dice at one half: half of 0.1 s doubled each time, at most half of 5 s.
    assert face.time.waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5])


def test_each_publish_has_a_key_of_its_own(face: Face) -> None:
    script = Script(created(), created(), created())
    face.connect(handler=script)
    face.call("publish", "a", 1)
    face.call("publish", "a", 1)
    face.call("publish", "a", 1, idempotency_key="mine")
    assert script.header("idempotency-key") == ["key-1", "key-2", "mine"]


def test_the_server_says_how_long_to_wait(face: Face) -> None:
    script = Script(refused(503, "unavailable", retry_after="2"), created())
    face.connect(handler=script)
    face.call("publish", "a", 1)
    assert face.time.waits == pytest.approx([2.05])


def test_a_publish_given_up_names_the_key_to_repeat_it_under(face: Face) -> None:
    script = Script(*[httpx.ReadTimeout("")] * 3, created(idempotent_replayed="true"))
    face.connect(handler=script, retry=RetryPolicy(attempts=3))
    with pytest.raises(Unreachable) as caught:
        face.call("publish", "a", 1)
    assert caught.value.retryable
    assert caught.value.idempotency_key == "key-1"
    assert isinstance(caught.value.__cause__, httpx.ReadTimeout)
    face.call("publish", "a", 1, idempotency_key=caught.value.idempotency_key)
    assert script.header("idempotency-key") == ["key-1"] * 4


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (refused(409, "head_mismatch"), HeadMismatch),
        (refused(422, "idempotency_mismatch"), IdempotencyMismatch),
    ],
)
def test_a_refusal_is_raised_at_once(face: Face, refusal: httpx.Response, kind: type[Exception]) -> None:
    script = Script(refusal)
    face.connect(handler=script)
    with pytest.raises(kind):
        face.call("publish", "a", 1, expected_last_seq=3)
    assert len(script.requests) == 1


def test_an_ephemeral_message_has_no_key_and_no_answer(face: Face) -> None:
    script = Script(refused(503, "unavailable"), httpx.Response(202, json={}))
    face.connect(handler=script)
    assert face.call("publish", "a", {"typing": True}, ephemeral=True, key="u", sender="ann") is None
    assert script.body == {"data": {"typing": True}, "key": "u", "sender": "ann", "ephemeral": True}
    assert script.header("idempotency-key") == [None, None]


def test_an_ephemeral_message_that_may_have_arrived_is_not_sent_twice(face: Face) -> None:
    script = Script(httpx.ReadTimeout(""))
    face.connect(handler=script)
    with pytest.raises(Unreachable):
        face.call("publish", "a", 1, ephemeral=True)


@pytest.mark.parametrize("option", ["ttl", "idempotency_key", "expected_last_seq", "nonsense"])
def test_options_that_mean_nothing_are_refused(face: Face, option: str) -> None:
    face.connect(handler=Script())
    with pytest.raises(TypeError):
        face.call("publish", "a", 1, ephemeral=True, **{option: 1})


@pytest.mark.parametrize("data", [float("nan"), float("inf"), {"a": float("nan")}])
def test_numbers_that_are_no_json_are_refused_before_anything_is_sent(face: Face, data: Any) -> None:
    face.connect(handler=Script())
    with pytest.raises(ValueError):
        face.call("publish", "a", data)


@pytest.mark.parametrize("answer_body", [[], {"id": 1}, {"messages": 3}, None, "x"])
@pytest.mark.parametrize("method", ["publish", "publish_many"])
def test_an_answer_of_something_else_is_named_as_such(face: Face, method: str, answer_body: Any) -> None:
    face.connect(handler=Script(created(answer_body)))
    with pytest.raises(ProtocolError):
        face.call(method, "a", [])


def test_a_token_function_is_asked_before_every_attempt(face: Face) -> None:
    script = Script(refused(503, "unavailable"), created())
    tokens = iter(["first", "second"])
    face.connect(handler=script, token=lambda: next(tokens))
    face.call("publish", "a", 1)
    assert script.header("authorization") == ["Bearer first", "Bearer second"]


def test_a_token_that_ended_on_its_way_is_asked_for_once_more(face: Face) -> None:
    script = Script(refused(401, "unauthenticated"), created())
    tokens = iter(["first", "second"])
    face.connect(handler=script, token=lambda: next(tokens))
    face.call("publish", "a", 1)
    assert script.header("authorization") == ["Bearer first", "Bearer second"]
    assert len(set(script.header("idempotency-key"))) == 1


@pytest.mark.parametrize(("token", "attempts"), [("fixed", 1), (lambda: "the same", 2)])
def test_a_token_that_is_not_good_is_not_tried_for_ever(face: Face, token: Any, attempts: int) -> None:
    script = Script(*[refused(401, "unauthenticated")] * 3)
    face.connect(handler=script, token=token)
    with pytest.raises(Unauthenticated):
        face.call("publish", "a", 1)
    assert len(script.header("authorization")) == attempts


def test_a_token_that_cannot_be_sent_is_not_tried_again(face: Face, raw_server: RawServer) -> None:
    face.connect(raw_server.url, token="two\nlines")
    with pytest.raises(Unreachable) as caught:
        face.call("publish", "a", 1)
    assert not caught.value.retryable
    assert face.time.waits == []


def test_over_a_real_socket_an_answer_cut_off_is_asked_for_again(face: Face, raw_server: RawServer) -> None:
    whole = answer(201, STORED)
    raw_server.scripts = replies(b"", whole[:20], whole[:-5], answer(503, problem(503, "unavailable")), whole)
    face.connect(raw_server.url)
    assert face.call("publish", "chat.lobby", 1).id == 1042
    assert {seen.headers["idempotency-key"] for seen in raw_server.seen} == {"key-1"}
    assert len({seen.body for seen in raw_server.seen}) == 1
    assert len(raw_server.seen) == 5


def test_where_nobody_listens_the_error_says_so(face: Face) -> None:
    face.connect("http://127.0.0.1:1")
    with pytest.raises(Unreachable):
        face.call("publish", "a", 1)
    assert len(face.time.waits) == 7


def test_unavailable_after_all_attempts_is_raised(face: Face) -> None:
    script = Script(*[refused(503, "unavailable", x_request_id="r-9")] * 8)
    face.connect(handler=script)
    with pytest.raises(Unavailable) as caught:
        face.call("publish", "a", 1)
    assert caught.value.request_id == "r-9"
