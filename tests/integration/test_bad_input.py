"""Bad input over REST and SSE: a clear 4xx as a problem document, never a 500, and nothing stored.

Everything is sent over plain sockets, since HTTP libraries put right, or refuse to send, much of it.
"""

from __future__ import annotations

import gzip
import json
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from app.http.protocol import GaplessHttpProtocol
from tests.patience import PATIENCE_S
from tests.raw_http import JSON_TYPE, MESSAGES, Bad, check_refused, connect, exchange, get, read_answer

MIB = 1024 * 1024
NOW = datetime.now(UTC)
START = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


def stored(server_url: str) -> Any:
    """Every channel with how far it has come."""
    channels: list[Any] = []
    cursor = ""
    while True:
        page = get(server_url, f"/v1/channels?limit=1000{cursor}").document
        channels += [(c["name"], c["last_id"], c["last_seq"]) for c in page["channels"]]
        if not page.get("has_more"):
            return channels
        cursor = f"&cursor={quote(str(page['cursor']), safe='')}"


def json_body(**members: Any) -> bytes:
    return json.dumps({"data": 1, **members}).encode()


def bodies() -> Iterator[Bad]:
    malformed = {
        "empty": b"", "not JSON": b"hello", "cut off": b'{"data":', "trailing data": b'{"data":1}{}',
        "trailing comma": b'{"data":1,}', "byte order mark": b'\xef\xbb\xbf{"data":1}',
        "invalid UTF-8": b'{"data":"\xff"}',
        "UTF-16": '{"data":1}'.encode("utf-16"), "repeated member": b'{"data":1,"data":2}',
        "raw NUL": b'{"data":"\x00"}',
        "repeated key in the data": b'{"data":{"a":{"b":1,"b":2}}}',
        "line break in a string": b'{"data":"a\nb"}',
        "repeated header": b'{"data":1,"headers":{"a":"b","a":"c"}}',
        "overlong UTF-8": b'{"data":"\xc0\x80"}',
    }  # fmt: skip
    for name, body in malformed.items():
        yield Bad(name, 400, "malformed_json", body=body)
    unfit = {
        "no object": b"5", "null": b"null", "no data": b"{}", "empty array": b"[]",
        "array of numbers": b"[1]",
        "NUL": b'{"data":"a\\u0000b"}', "NUL in a key": b'{"data":{"\\u0000":1}}',
        "NUL deep down": b'{"data":[[["\\u0000"]]]}',
        "lone surrogate": b'{"data":"\\ud800"}', "lone surrogate in a key": b'{"data":{"\\udfff":1}}',
        "NaN": b'{"data":NaN}',
        "Infinity": b'{"data":[-Infinity]}',
        "100k nesting": b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "100k nested objects": b'{"data":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        "33 nesting": b'{"data":' + b"[" * 33 + b"]" * 33 + b"}",
        "5,000 digits": b'{"data":' + b"1" * 5000 + b"}",
        "2^64": b'{"data":18446744073709551616}', "1e400": b'{"data":1e400}',
        "1e-99999": b'{"data":1e-99999}',
        "1001 messages": b"[%b{}]" % (b'{"data":1},' * 1000),
        "both data": b'{"data":1,"data_base64":"AA=="}', "not base64": b'{"data_base64":"*"}',
        "one bad of two": b'[{"data":1},{}]',
        "ephemeral in an array": b'[{"data":1,"ephemeral":true}]',
    }  # fmt: skip
    for name, body in unfit.items():
        yield Bad(name, 422, "invalid_request", body=body)


def members() -> Iterator[Bad]:
    for name in ("id", "seq", "created_at", "expires_at", "sender", "channel", "tenant", "attempts"):
        yield Bad(f"member {name}", 422, "invalid_request", body=json_body(**{name: 1}))
    values: dict[str, list[Any]] = {
        "type": ["", "t" * 129, 5, None, [], *LINES],
        "key": ["k" * 256, 5, {}, *LINES],
        "headers": [
            5,
            [],
            {"a": 1},
            {"a": None},
            {"": "x"},
            {f"h{i}": "" for i in range(65)},
            {"a": "x" * 8192},
        ],
        "ttl": [0, -1, 1e30, "5", True, [], -0.0],
        "delay": [-1, "5", True, 1e30],
        "deliver_at": [5, "soon", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00"],
        "ephemeral": [1, "true", "yes"],
    }
    for member, wrong in values.items():
        for value in wrong:
            yield Bad(f"{member} {value!r:.20}", 422, "invalid_request", body=json_body(**{member: value}))
    for text in LINES:
        yield Bad(f"header value {text!r}", 422, "invalid_request", body=json_body(headers={"a": text}))
        yield Bad(f"header name {text!r}", 422, "invalid_request", body=json_body(headers={text: "a"}))
    both = json_body(delay=10, deliver_at="2030-01-01T00:00:00Z")
    yield Bad("delay and deliver_at", 422, "invalid_request", body=both)
    yield Bad(
        "deliver_at in 100 years",
        422,
        "invalid_request",
        body=json_body(deliver_at=f"{NOW.year + 100}-01-01T00:00:00Z"),
    )
    for schedule in (b'"delay":5', b'"deliver_at":"2030-01-01T00:00:00Z"'):
        name = f"{schedule.decode():.12}"
        mixed = b'[{"data":1,%b},{"data":2}]' % schedule
        yield Bad(f"{name} in a part of an array", 422, "invalid_request", body=mixed)
        yield Bad(
            f"{name} in a batch",
            422,
            "invalid_request",
            target="/v1/messages",
            body=b'{"messages":[{"channel":"bad.input","data":1,%b}]}' % schedule,
        )
        yield Bad(
            f"{name} of an ephemeral",
            422,
            "invalid_request",
            body=b'{"data":1,"ephemeral":true,%b}' % schedule,
        )
        yield Bad(
            f"{name} with Expected-Last-Seq",
            422,
            "invalid_request",
            body=b'{"data":1,%b}' % schedule,
            headers=JSON_TYPE | {"Expected-Last-Seq": "0"},
        )


LINES = ["a\nb", "a\rb", "a\r\nid: 7\r\n\r\n", "a\x00b", "\x1b[2J", "a\x7f", "\x85", "a\tb"]
NAMES = [
    "a..b", ".a", "a.", ".", "..", "*", "a.*", ">", "a.>", "#", "a.#", "$sys", "a b", "a" * 256, "a,b",
    "a\x00", "a\r\nb",
    "a\n", "чат", "\u0430bc", "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9"), "a\u200b", "\uff41",
    "a%00", "a;b", "a\\b",
    "../../etc", "a/b", "",
]  # fmt: skip


def names() -> Iterator[Bad]:
    for name in NAMES:
        path = quote(name, safe="")
        # A slash or nothing where the name should be may lead to no route at all.
        no_route = (404, 422) if "/" in name or not name else 422
        code = None if no_route != 422 else "invalid_request"
        label = f"{name!r:.20}"
        yield Bad(f"publish to {label}", no_route, code, target=f"/v1/channels/{path}/messages")
        yield Bad(f"history of {label}", no_route, code, "GET", f"/v1/channels/{path}/messages", {}, b"")
        if name:
            yield Bad(f"put {label}", no_route, code, "PUT", f"/v1/channels/{path}", body=b"{}")
        batch = json.dumps({"messages": [{"channel": "bad.input", "data": 1}, {"channel": name, "data": 1}]})
        yield Bad(f"batch with {label}", 422, "invalid_request", target="/v1/messages", body=batch.encode())
    for name in ("a..b", "a.>.b", "a*", "#", "a\r\nb", "\x00", "чат", "*" * 256):
        target = f"/v1/channels?pattern={quote(name, safe='')}"
        yield Bad(f"list {name!r:.20}", 422, "invalid_request", "GET", target, {}, b"")


def heads() -> Iterator[Bad]:
    for value in (
        "text/plain",
        "application/xml",
        "application/json; charset=latin-1",
        "",
        "json",
        "multipart/form-data",
    ):
        yield Bad(f"Content-Type {value!r}", 415, "unsupported_media_type", headers={"Content-Type": value})
    yield Bad("no Content-Type", 415, "unsupported_media_type", headers={})
    for value in ("br", "deflate", "zstd", "gzip, gzip", "compress"):
        yield Bad(
            f"Content-Encoding {value}",
            415,
            "unsupported_media_type",
            headers=JSON_TYPE | {"Content-Encoding": value},
        )
    gzipped = JSON_TYPE | {"Content-Encoding": "gzip"}
    yield Bad("not gzip", 400, "invalid_request", headers=gzipped)
    yield Bad("cut off gzip", 400, "invalid_request", headers=gzipped, body=gzip.compress(b'{"data":1}')[:-1])
    yield Bad("gzip bomb", 413, "payload_too_large", headers=gzipped, body=gzip.compress(bytes(100 * MIB)))
    for value in ("k" * 256, "ключ", "", "a\tb"):
        yield Bad(
            f"Idempotency-Key {value!r:.20}",
            400,
            "invalid_request",
            headers=JSON_TYPE | {"Idempotency-Key": value},
        )
    for value in ("", "-1", "+1", "1.0", "x", "9" * 5000, str(2**53 + 1), "1, 2"):
        yield Bad(
            f"Expected-Last-Seq {value:.20}",
            400,
            "invalid_request",
            headers=JSON_TYPE | {"Expected-Last-Seq": value},
        )
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", **JSON_TYPE}
    for change in ({"ce-type": "a%0D%0Ab"}, {"ce-id": ""}, {"ce-specversion": "2"}, {"ce-subject": "%FF"},
        {"ce-a-b": "x"},
                   {"ce-x": "%00"}, {"ce-partitionkey": "a%0Ab"}, {"ce-time": "now"}):  # fmt: skip
        yield Bad(f"CloudEvent {change}", 422, "invalid_request", headers=event | change)
    structured = {"Content-Type": "application/cloudevents+json"}
    yield Bad("CloudEvent without members", 422, "invalid_request", headers=structured, body=b"{}")
    yield Bad(
        "CloudEvent twice the id", 400, "malformed_json", headers=structured, body=b'{"id":"1","id":"2"}'
    )


def sizes() -> Iterator[Bad]:
    yield Bad(
        "message of 1 MiB and a byte", 413, "payload_too_large", body=b'{"data":"%b"}' % (b"x" * (MIB - 1))
    )
    many = [{"data": "x" * 900_000}] * 10
    yield Bad("batch of 9 MB", 413, "payload_too_large", body=json.dumps(many).encode())
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    chunked = JSON_TYPE | {"Transfer-Encoding": "chunked"}
    yield Bad("9 MiB in chunks", 413, "payload_too_large", headers=chunked, body=chunk * 144 + b"0\r\n\r\n")
    announced = JSON_TYPE | {"Content-Length": str(50 * MIB)}
    yield Bad("50 MiB announced", 413, "payload_too_large", headers=announced)
    yield Bad("100 KB of target", 414, "uri_too_long", "GET", "/v1/channels?" + "x" * 100_000, {}, b"")
    yield Bad("70 KB of header", 431, "headers_too_large", headers=JSON_TYPE | {"X": "x" * 70_000})
    yield Bad("101 headers", 431, "headers_too_large", headers=JSON_TYPE | {f"x{i}": "x" for i in range(100)})


def raw() -> Iterator[Bad]:
    post = START
    chunked = b'a\r\n{"data":1}\r\n0\r\n\r\n'
    framing = {
        "CL and TE": post + b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
        "two CL": post + b'Content-Length: 10\r\nContent-Length: 11\r\n\r\n{"data":1} ',
        "CL -1": post + b"Content-Length: -1\r\n\r\n",
        "TE: xchunked": post + b"Transfer-Encoding: xchunked\r\n\r\n" + chunked,
        "NUL in a header": post + b"Idempotency-Key: a\x00b\r\n\r\n",
        "CR in a header": post + b"Idempotency-Key: a\rb\r\n\r\n",
        "space before the colon": post + b"A : b\r\n\r\n", "folded header": post + b"A: b\r\n c\r\n\r\n",
        "bare LF": post.replace(b"\r\n", b"\n") + b'Content-Length: 10\n\n{"data":1}',
        "no Host": b"GET /v1/channels HTTP/1.1\r\n\r\n",
        "two Hosts": post + b"Host: y\r\n\r\n", "not HTTP": b"\x16\x03\x01\x02\x00\x01",
        "bad chunk": post + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
        "two keys": post + b"Idempotency-Key: a\r\n" * 2 + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
    }  # fmt: skip
    for name, request in framing.items():
        yield Bad(name, 400, "invalid_request", raw=request)
    for method in ("FOO", "TRACE", "PROPFIND", "PATCH", "PUT"):
        yield Bad(f"method {method}", 405, "method_not_allowed", method)


def reads() -> Iterator[Bad]:
    def query(target: str, wrong: str, status: int | tuple[int, ...] = 422) -> Bad:
        code = "invalid_request" if isinstance(status, int) else None
        return Bad(f"{target.rsplit('/')[-1]} {wrong:.30}", status, code, "GET", f"{target}?{wrong}", {}, b"")

    for wrong in ("limit=0", "limit=-1", "limit=1001", "limit=x", "limit=1.5", "order=sideways", "after=-1",
        "after=x",
                  "after=" + "9" * 30, "before=x", "before=-1", "before=" + "9" * 5000, "since=soon",
                  "since=10y", "since=-5m",
                  "type=" + "t" * 129, "key=" + "k" * 256, "type=a%0Ab", "key=%00",
                  "after=%EF%BC%91"):  # fmt: skip
        yield query(MESSAGES, wrong, (400, 422))
    for wrong in ("limit=0", "limit=-1", "limit=1001", "limit=x", "cursor=%00", "cursor=a..b"):
        yield query("/v1/channels", wrong, (400, 422))
    for name in ("x", "-1", "1.5", "9" * 30, "%00", "1%0A"):
        yield Bad(f"message {name:.20}", (404, 422), None, "GET", f"{MESSAGES}/{name}", {}, b"")
    for body in (b"[]", b"5", b'{"retention":{"max_age":-1}}', b'{"retention":{"max_messages":0}}',
        b'{"retention":{"x":1}}',
                 b'{"retention":[]}', b'{"message_ttl":0}', b'{"message_ttl":"5"}', b'{"message_ttl":1e30}',
                 b'{"message_ttl":true}',
                 b'{"x":1}', b'{"name":"other","x":1}', b'{"retention":{"max_age":1e30}}',
                 b'{"retention":{"max_messages":1.5}}',
                 b'{"retention":{"max_age":99999999999999999999}}'):  # fmt: skip
        yield Bad(f"put {body!r}", 422, "invalid_request", "PUT", "/v1/channels/bad.input", body=body)
    yield Bad("put not JSON", 400, "malformed_json", "PUT", "/v1/channels/bad.input", body=b"{")
    for method in ("GET", "DELETE"):
        yield Bad(
            f"{method} no such channel", 404, "channel_not_found", method, "/v1/channels/bad.none", {}, b""
        )
    yield Bad(
        "history of no such channel",
        404,
        "channel_not_found",
        "GET",
        "/v1/channels/bad.none/messages",
        {},
        b"",
    )
    yield Bad("no such route", 404, "not_found", "GET", "/v1/nothing", {}, b"")


def streams() -> Iterator[Bad]:
    def stream(
        name: str, status: int | tuple[int, ...], query: str = "channel=bad.input", **headers: str
    ) -> Bad:
        code = "invalid_request" if status in (400, 422) else "not_acceptable" if status == 406 else None
        fields = {"Accept": "text/event-stream"} | {k.replace("_", "-"): v for k, v in headers.items()}
        return Bad(f"stream {name:.40}", status, code, "GET", f"/v1/subscribe?{query}", fields, b"")

    for accept in ("application/json", "text/html", "image/*, application/json", "text/plain"):
        yield stream(f"Accept {accept}", 406, Accept=accept)
    for value in (
        "x",
        "-1",
        "1.5",
        "1e3",
        " ",
        "0x10",
        "9" * 17,
        "9" * 300,
        str(2**53),
        "1,2",
        "١",
        "ключ",
        '{"a":1}',
        "1;2",
    ):
        if value.strip():
            yield stream(f"Last-Event-ID {value}", 400, Last_Event_ID=value)
        yield stream(f"after={value}", 400, f"channel=bad.input&after={quote(value)}")
    for future in ("4503599627370496", str(2**53 - 1)):
        yield stream(f"future header {future}", 400, Last_Event_ID=future)
        yield stream(f"future after {future}", 400, f"channel=bad.input&after={future}")
    yield stream("bad header and good query", 400, "channel=bad.input&after=0", Last_Event_ID="x")
    yield stream("no channel", 422, "")
    yield stream("129 channels", 422, "&".join(f"channel=c{i}" for i in range(129)))
    for name in NAMES:
        if ">" not in name and "*" not in name:
            yield stream(f"of {name!r}", 422, f"channel={quote(name, safe='')}")
    for name in ("a.>.b", "a*", "**", "a.>>"):
        yield stream(f"of {name}", 422, f"channel={quote(name, safe='')}")
    for wrong in ("heartbeat=4", "heartbeat=61", "heartbeat=x", "heartbeat=-5", "heartbeat=1e1",
        "last=1001", "last=-1", "last=x",
                  "since=soon", "since=10", "since=-10m", "since=" + "9" * 400 + "d", "from=middle",
                  "type=" + "t" * 129,
                  "type=a%0D%0Ab", "key=%00", "key=" + "k" * 256, "after=%FF", "from=", "last="):  # fmt: skip
        yield stream(wrong, (400, 422), f"channel=bad.input&{wrong}")
    yield Bad("POST a stream", 405, "method_not_allowed", "POST", "/v1/subscribe?channel=bad.input")


CASES = [case for cases in (bodies, members, names, heads, sizes, raw, reads, streams) for case in cases()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_refused_and_stores_nothing(server_url: str, case: Bad) -> None:
    before = stored(server_url)
    check_refused(server_url, case)
    assert stored(server_url) == before


def test_what_never_ends_is_cut_off_in_ten_seconds(server_url: str) -> None:
    """The limit itself is looked at, not how long it took: that is the machine's."""
    assert GaplessHttpProtocol.patience_s + GaplessHttpProtocol.tick_s <= 10
    head = START
    starts = [
        head,
        head + b"Content-Length: 10\r\n\r\n{",
        head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ]
    before = stored(server_url)
    connections = [connect(server_url) for _ in starts]
    for connection, start in zip(connections, starts, strict=True):
        connection.sendall(start)
    for connection in connections:
        with connection:
            connection.settimeout(PATIENCE_S)
            answer = read_answer(connection)
            assert (answer.status, answer.document["code"]) == (408, "request_timeout")
            assert connection.recv(1) == b""
    assert stored(server_url) == before


def test_an_idempotency_key_does_not_cover_another_body(server_url: str) -> None:
    headers = JSON_TYPE | {"Idempotency-Key": "bad-input-1"}
    target = "/v1/channels/bad.idempotent/messages"
    first = exchange(server_url, Bad("", 0, None, "POST", target, headers).request())
    assert first.status == 201
    before = stored(server_url)
    other = exchange(server_url, Bad("", 0, None, "POST", target, headers, b'{"data":2}').request())
    assert (other.status, other.document["code"]) == (422, "idempotency_mismatch")
    again = exchange(server_url, Bad("", 0, None, "POST", target, headers).request())
    assert (again.status, again.document) == (201, first.document)
    assert again.headers["idempotent-replayed"] == "true"
    assert stored(server_url) == before


@pytest.mark.parametrize(
    "accept", [None, "*/*", "text/event-stream", "text/*;q=0.5", "text/html, text/event-stream"]
)
def test_streams_open_for_every_accept_that_allows_them(server_url: str, accept: str | None) -> None:
    headers = {"Accept": accept} if accept else {}
    answer = get(server_url, "/v1/subscribe?channel=bad.none", **headers)
    assert answer.status == 200
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"


def test_a_refused_condition_makes_no_channel(server_url: str) -> None:
    before = stored(server_url)
    headers = JSON_TYPE | {"Expected-Last-Seq": "7"}
    target = "/v1/channels/bad.expected/messages"
    answer = exchange(server_url, Bad("", 0, None, "POST", target, headers).request())
    assert (answer.status, answer.document["code"]) == (409, "head_mismatch")
    assert stored(server_url) == before


def test_the_header_wins_over_the_query(server_url: str) -> None:
    target = f"/v1/subscribe?channel=bad.none&after={2**53 - 1}"
    assert get(server_url, target).status == 400
    assert get(server_url, target, **{"Last-Event-ID": "0"}).status == 200


@pytest.mark.parametrize("second", ["0", "1", ""])
def test_two_cursors_are_refused(server_url: str, second: str) -> None:
    fields = {"Last-Event-ID": "0", "last-event-id": second}
    answer = exchange(
        server_url, Bad("", 0, None, "GET", "/v1/subscribe?channel=bad.twice", fields).request()
    )
    assert (answer.status, answer.document["code"]) == (400, "invalid_request")


def test_head_of_a_stream_has_no_body_and_ends(server_url: str) -> None:
    with connect(server_url) as connection:
        connection.sendall(
            b"HEAD /v1/subscribe?channel=bad.none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        answer = read_answer(connection, bodiless=True)
        assert answer.status == 200
        assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
        assert connection.recv(1) == b""
        assert answer.body == b""


def test_what_a_stream_carries_stays_on_its_line(server_url: str) -> None:
    """Line breaks in data, and other line separators everywhere, do not end an event early."""
    data = {
        "text": "a\r\nid: 7\r\n\r\ndata: x\u2028\u2029\x0b\x0c\u0085",
        "ctrl": "".join(map(chr, range(1, 32))),
    }
    body = json.dumps({"data": data, "key": "\u2028", "type": "\u2029"}, ensure_ascii=False, indent=1)
    target = "/v1/channels/bad.lines/messages"
    published = exchange(server_url, Bad("", 0, None, "POST", target, body=body.encode()).request())
    assert published.status == 201, published
    with connect(server_url) as connection:
        before = published.document["id"] - 1
        request = f"GET /v1/subscribe?channel=bad.lines&after={before} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(request.encode())
        received = b""
        while b"event: ready" not in received:
            received += connection.recv(65536)
    lines = [line for line in received.splitlines() if line.startswith(b"data: ") and b"bad.lines" in line]
    assert json.loads(lines[0][len(b"data: ") :])["data"] == data
