"""History: pages, a stream in constant memory, single messages, channels."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from gapless import Channel, CursorExpired, Last, NotFound, ProtocolError, Retention, RetryPolicy, Unreachable

from tests.client.faces import Face
from tests.client.model import lines, message, problem
from tests.client.raw_server import RawServer, Script, chunks, replies, stream_head

NDJSON = "application/x-ndjson"


class Service:
    """Keeps a log and answers for it as the protocol says."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        asked = request.url.params
        after, before = int(asked.get("after", 0)), int(asked.get("before", 10**9))
        found = sorted((one for one in self.ids if after < one < before), reverse=asked["order"] == "desc")
        limit = int(asked.get("limit", len(found)))
        page = [message(one) for one in found[:limit]]
        cursor = page[-1]["id"] if page else after
        return httpx.Response(200, json={"messages": page, "has_more": len(found) > limit, "cursor": cursor})


@pytest.mark.parametrize(
    ("order", "expected"), [("asc", [[1, 2], [3, 5], [8]]), ("desc", [[8, 5], [3, 2], [1]])]
)
def test_pages_follow_one_another(face: Face, order: str, expected: list[list[int]]) -> None:
    service = Service([1, 2, 3, 5, 8])
    face.connect(handler=service)
    pages = face.listing("history", "chat.lobby", page_size=2, order=order, types=["a", "b"], keys="k")
    assert [[one.id for one in page] for page in pages] == expected
    assert [len(page) for page in pages] == [2, 2, 1]
    assert service.requests[0].url.path == "/v1/channels/chat.lobby/messages"
    assert all(request.url.params.get_list("type") == ["a", "b"] for request in service.requests)
    assert all(request.url.params.get_list("key") == ["k"] for request in service.requests)


def test_pages_end_where_asked(face: Face) -> None:
    face.connect(handler=Service([1, 2, 3, 5, 8]))
    pages = face.listing("history", "a", page_size=2, start=1, before=8)
    assert [one.id for page in pages for one in page] == [2, 3, 5]


def test_an_empty_history_has_no_page(face: Face) -> None:
    face.connect(handler=Service([]))
    assert face.listing("history", "a", start=datetime(2026, 11, 20, tzinfo=UTC)) == []


@pytest.mark.parametrize("start", ["latest", Last(3)])
def test_a_history_has_no_start_behind_its_end(face: Face, start: Any) -> None:
    face.connect(handler=Service([1]))
    with pytest.raises(ValueError, match="a history has no start at"):
        face.open("history", "a", start=start)


def test_a_service_that_goes_round_in_circles_is_noticed(face: Face) -> None:
    page = {"messages": [message(1)], "has_more": True, "cursor": 1}
    face.connect(handler=lambda request: httpx.Response(200, json=page))
    with pytest.raises(ProtocolError):
        face.listing("history", "a")


def test_removed_history_is_an_error(face: Face) -> None:
    face.connect(handler=lambda request: httpx.Response(410, json=problem(410, "cursor_expired")))
    with pytest.raises(CursorExpired):
        face.listing("history", "a", start=1)


def history(*ids: int) -> bytes:
    return b"".join(lines([message(one) for one in ids]))


def test_a_stream_goes_on_where_it_was_cut(face: Face, raw_server: RawServer) -> None:
    head = stream_head(NDJSON)
    raw_server.scripts = replies(
        b"",
        head + chunks(history(1, 2), history(3)[:20], end=False),
        head + chunks(history(3), end=False),
        head + chunks(history(3, 4, 5)),
    )
    face.connect(raw_server.url)
    stream = face.open("iter_history", "chat.lobby")
    assert [one.id for one in face.take(stream)] == [1, 2, 3, 4, 5]
    assert stream.cursor == 5
    assert [dict(seen.params).get("after") for seen in raw_server.seen] == [None, None, "2", "3"]
    assert raw_server.seen[0].headers["accept"] == NDJSON


def test_a_stream_backwards_goes_on_backwards(face: Face, raw_server: RawServer) -> None:
    head = stream_head(NDJSON)
    raw_server.scripts = replies(head + chunks(history(5, 4), end=False), head + chunks(history(4, 3)))
    face.connect(raw_server.url)
    stream = face.open("iter_history", "a", order="desc", limit=3)
    assert [one.id for one in face.take(stream)] == [5, 4, 3]
    assert [dict(seen.params) for seen in raw_server.seen] == [
        {"limit": "3", "order": "desc"},
        {"limit": "1", "before": "4", "order": "desc"},
    ]


def test_every_cut_of_a_stream_is_made_good(face: Face, raw_server: RawServer) -> None:
    whole = stream_head(NDJSON) + chunks(history(1), history(2, 3))

    def cut_at(length: int) -> Script:
        return lambda exchange: exchange.send(whole[:length])

    face.connect(raw_server.url)
    for length in range(len(whole)):
        raw_server.seen.clear()
        raw_server.scripts = [cut_at(length), cut_at(len(whole))]
        assert [one.id for one in face.take(face.open("iter_history", "a"))] == [1, 2, 3]


def test_a_last_line_needs_no_end(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = replies(stream_head(NDJSON) + chunks(history(1, 2).rstrip()))
    face.connect(raw_server.url)
    assert [one.id for one in face.take(face.open("iter_history", "a"))] == [1, 2]


def test_a_half_line_before_a_proper_end_is_a_cut(face: Face, raw_server: RawServer) -> None:
    head = stream_head(NDJSON, chunked=False)
    raw_server.scripts = replies(head + history(1) + history(2)[:30], head + history(2))
    face.connect(raw_server.url)
    assert [one.id for one in face.take(face.open("iter_history", "a"))] == [1, 2]


def test_a_stream_that_never_gets_on_is_given_up(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = replies(stream_head(NDJSON) + chunks(history(1), end=False))
    face.connect(raw_server.url, retry=RetryPolicy(attempts=3))
    stream = face.open("iter_history", "a")
    assert face.take(stream, 1)[0].id == 1
    with pytest.raises(Unreachable):
        face.take(stream)
    assert len(raw_server.seen) == 3
    assert face.take(stream) == []


def test_a_stream_that_gets_on_a_little_each_time_is_not_given_up(face: Face, raw_server: RawServer) -> None:
    head = stream_head(NDJSON)
    raw_server.scripts = replies(*(head + chunks(history(n), end=n == 9) for n in range(1, 10)))
    face.connect(raw_server.url, retry=RetryPolicy(attempts=2))
    assert [one.id for one in face.take(face.open("iter_history", "a"))] == list(range(1, 10))


def test_a_stream_cut_behind_the_last_message_asked_for_is_whole(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = replies(stream_head(NDJSON) + chunks(history(1, 2), end=False))
    face.connect(raw_server.url)
    assert [one.id for one in face.take(face.open("iter_history", "a", limit=2))] == [1, 2]
    assert len(raw_server.seen) == 1


def test_a_stream_of_an_unknown_channel_is_an_error_on_entering(face: Face) -> None:
    face.connect(handler=lambda request: httpx.Response(404, json=problem(404, "channel_not_found")))
    with pytest.raises(NotFound):
        face.enter(face.open("iter_history", "a"))


def test_one_message(face: Face) -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        return httpx.Response(200, json=message(7))

    face.connect(handler=handler)
    assert face.call("get_message", "chat.lobby", 7).data == {"n": 7}
    assert seen == ["/v1/channels/chat.lobby/messages/7"]


RAW_CHANNEL = {
    "name": "a.b",
    "last_id": 9,
    "last_seq": 4,
    "first_seq": 2,
    "created_at": "2026-11-20T12:00:00Z",
    "retention": {"max_age": 3600},
    "message_ttl": 60,
}
CHANNEL = Channel("a.b", 9, 4, 2, datetime(2026, 11, 20, 12, tzinfo=UTC), Retention(max_age=3600), 60)


def test_channels_are_listed_over_all_pages(face: Face) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.params["pattern"] == "a.>"
        assert request.url.params["limit"] == "2"
        if "cursor" not in request.url.params:
            return httpx.Response(200, json={"channels": [RAW_CHANNEL, RAW_CHANNEL], "cursor": "a.b"})
        assert request.url.params["cursor"] == "a.b"
        return httpx.Response(200, json={"channels": [RAW_CHANNEL], "cursor": None})

    face.connect(handler=handler)
    assert face.listing("channels.list", "a.>", page_size=2) == [CHANNEL] * 3


@pytest.mark.parametrize(
    ("method", "options", "verb", "body"),
    [
        ("channels.get", {}, "GET", None),
        ("channels.put", {}, "PUT", {}),
        ("channels.put", {"retention": Retention(max_age=60), "message_ttl": 5}, "PUT",
         {"retention": {"max_age": 60}, "message_ttl": 5}),
        ("channels.update", {}, "PATCH", {}),
        ("channels.update", {"retention": None}, "PATCH", {"retention": None}),
        ("channels.update", {"message_ttl": None, "retention": Retention(max_messages=3)}, "PATCH",
         {"retention": {"max_messages": 3}, "message_ttl": None}),
    ],
)  # fmt: skip
def test_a_channel_is_read_made_and_changed(
    face: Face, method: str, options: dict[str, Any], verb: str, body: Any
) -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=RAW_CHANNEL)

    face.connect(handler=handler)
    assert face.call(method, "a.b", **options) == CHANNEL
    assert (requests[0].method, requests[0].url.path) == (verb, "/v1/channels/a.b")
    assert (json.loads(requests[0].content) if requests[0].content else None) == body


def test_deleting_is_not_repeated_when_it_may_have_been_done(face: Face) -> None:
    requests: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request.method)
        if len(requests) == 1:
            return httpx.Response(204)
        raise httpx.ReadTimeout("")

    face.connect(handler=handler)
    assert face.call("channels.delete", "a") is None
    with pytest.raises(Unreachable):
        face.call("channels.delete", "a")
    assert requests == ["DELETE", "DELETE"]


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_would_reach_another_resource_are_refused(face: Face, name: str) -> None:
    face.connect(handler=lambda request: httpx.Response(200, json=RAW_CHANNEL))
    with pytest.raises(ValueError):
        face.call("channels.get", name)


@pytest.mark.parametrize(
    ("name", "path"), [("a~b:c@d-e_f", "a~b:c@d-e_f"), ("a/../b?c#d e", "a%2F..%2Fb%3Fc%23d%20e")]
)
def test_names_stay_one_path_segment(face: Face, name: str, path: str) -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        return httpx.Response(200, json=RAW_CHANNEL)

    face.connect("http://gapless.test/prefix/", handler=handler)
    face.call("channels.get", name)
    assert seen == [f"/prefix/v1/channels/{path}"]


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"channels": 1, "messages": 1}', b'{"messages": [1]}']
)
@pytest.mark.parametrize("method", ["history", "channels.list"])
def test_an_answer_of_something_else_is_named_as_such(face: Face, method: str, body: bytes) -> None:
    face.connect(handler=lambda request: httpx.Response(200, content=body))
    with pytest.raises(ProtocolError):
        face.listing(method, "a")
