"""The HTTP protocol on a real server, spoken to byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from app.http_protocol import (
    MAX_REQUEST_BYTES,
    MAX_TARGET_BYTES,
    GaplessHttpProtocol,
    Watch,
    _Event,
    _watches,
)

GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"


class Hasty(GaplessHttpProtocol):
    patience_s = 0.4
    linger_s = 0.2
    tick_s = 0.05


class Application:
    """/echo answers with the body's length, /early before reading it, /stream goes on until it is let go."""

    def __init__(self) -> None:
        self.disconnected = threading.Event()
        self.connection: Any = None
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers = scope["headers"]
        answer = b"" if scope["path"] == "/early" else await self.read(receive)
        start = {"type": "http.response.start", "status": 200, "headers": []}
        if scope["path"] == "/stream":
            self.connection = scope["extensions"]["gapless"]
            await send(start)
            await send({"type": "http.response.body", "body": b"hello", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.disconnected.set()
            return
        start["headers"] = [(b"content-length", b"%d" % len(answer))]
        await send(start)
        await send({"type": "http.response.body", "body": answer})

    async def read(self, receive: Any) -> bytes:
        length = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.set()
                return b""
            length += len(message["body"])
            if not message["more_body"]:
                return b"%d" % length


class Running(uvicorn.Server):
    """A server in a thread of its own."""

    def __init__(self, http: type[asyncio.Protocol]) -> None:
        self.application = Application()
        super().__init__(
            uvicorn.Config(self.application, http=http, port=0, lifespan="off", log_level="critical")
        )
        self.up = threading.Event()
        self.thread = threading.Thread(target=self.run)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    def __enter__(self) -> Running:
        self.thread.start()
        assert self.up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.should_exit = self.force_exit = True
        self.thread.join(10)

    @property
    def watch(self) -> Watch:
        return _watches[self.server_state]

    def connect(self) -> socket.socket:
        address = self.servers[0].sockets[0].getsockname()
        return socket.create_connection(address, timeout=5)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    with Running(Hasty) as server:
        yield server


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def until(connection: socket.socket, text: bytes, times: int = 1) -> bytes:
    """What the server sends until it has sent `text` so many times."""
    received = b""
    while received.count(text) < times:
        part = connection.recv(65536)
        assert part, received
        received += part
    return received


def exchange(server: Running, *parts: bytes) -> bytes:
    with server.connect() as connection:
        for part in parts:
            connection.sendall(part)
        return everything(connection)


def check_problem(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    status_line, *fields = head.split(b"\r\n")
    headers = {name.lower(): value for name, value in (field.split(b": ", 1) for field in fields)}
    document = json.loads(body)
    assert status_line.startswith(b"HTTP/1.1 %d " % status)
    assert (document["status"], document["code"]) == (status, code)
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"connection"] == b"close"
    assert headers[b"x-request-id"]
    assert int(headers[b"content-length"]) == len(body)


def post(*fields: bytes, body: bytes = b"", path: bytes = b"/echo") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n%b" % (path, b"".join(f + b"\r\n" for f in fields), body)


BAD_REQUEST = "invalid_request"
CHUNKED = b"Transfer-Encoding: chunked"
BAD: list[tuple[str, bytes, int, str]] = [
    ("target", b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * MAX_TARGET_BYTES), 414, "uri_too_long"),
    ("endless target", b"GET /" + b"x" * 100_000, 414, "uri_too_long"),
    ("fields", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 100 + b"\r\n", 431, "headers_too_large"),
    ("100k fields", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 100_000, 431, "headers_too_large"),
    ("field bytes", b"GET / HTTP/1.1\r\nHost: x\r\na: %b\r\n\r\n" % (b"b" * 32768), 431, "headers_too_large"),
    ("endless field", b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * 200_000, 431, "headers_too_large"),
    ("endless name", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"b" * 200_000, 431, "headers_too_large"),
    ("no Host", b"GET / HTTP/1.1\r\n\r\n", 400, BAD_REQUEST),
    ("two Hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, BAD_REQUEST),
    ("CL and TE", post(b"Content-Length: 3", CHUNKED, body=b"0\r\n\r\n"), 400, BAD_REQUEST),
    ("TE and CL", post(CHUNKED, b"Content-Length: 3", body=b"0\r\n\r\n"), 400, BAD_REQUEST),
    ("two CL", post(b"Content-Length: 1", b"Content-Length: 2", body=b"xx"), 400, BAD_REQUEST),
    ("CL -1", post(b"Content-Length: -1"), 400, BAD_REQUEST),
    ("CL +1", post(b"Content-Length: +1", body=b"x"), 400, BAD_REQUEST),
    ("CL huge", post(b"Content-Length: 99999999999999999999"), 400, BAD_REQUEST),
    ("TE xchunked", post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), 400, BAD_REQUEST),
    ("TE chunked, gzip", post(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"), 400, BAD_REQUEST),
    ("bad chunk", post(CHUNKED, body=b"zz\r\n"), 400, BAD_REQUEST),
    ("NUL in a value", b"GET / HTTP/1.1\r\nHost: x\r\na: \x00\r\n\r\n", 400, BAD_REQUEST),
    ("NUL in a name", b"GET / HTTP/1.1\r\nHost: x\r\na\x00: b\r\n\r\n", 400, BAD_REQUEST),
    ("space before colon", b"GET / HTTP/1.1\r\nHost: x\r\na : b\r\n\r\n", 400, BAD_REQUEST),
    ("folded", b"GET / HTTP/1.1\r\nHost: x\r\na: b\r\n c\r\n\r\n", 400, BAD_REQUEST),
    ("bare LF", b"GET / HTTP/1.1\nHost: x\n\n", 400, BAD_REQUEST),
    ("bare CR", b"GET / HTTP/1.1\r\nHost: x\r\na: b\rc\r\n\r\n", 400, BAD_REQUEST),
    ("space in the target", b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400, BAD_REQUEST),
    ("non-ASCII target", "GET /é HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 400, BAD_REQUEST),
    ("version", b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 400, BAD_REQUEST),
    ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, BAD_REQUEST),
    ("no path", b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n", 400, BAD_REQUEST),
    ("CONNECT", b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed"),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, BAD_REQUEST),
    ("unknown method", b"FOO /echo HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed"),
    ("lower-case method", b"get /echo HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed"),
    ("trailers", post(CHUNKED, body=b"0\r\n" + b"a: b\r\n" * 50_000), 400, BAD_REQUEST),
    ("chunk extension", post(CHUNKED, body=b"1;" + b"x" * 300_000), 400, BAD_REQUEST),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "status", "code"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
@pytest.mark.parametrize("pieces", ["whole", "pieces"])
def test_refusals(hasty: Running, raw: bytes, status: int, code: str, pieces: str) -> None:
    step = len(raw) if pieces == "whole" else max(7, len(raw) // 50)
    parts = [raw[at : at + step] for at in range(0, len(raw), step)]
    check_problem(exchange(hasty, *parts), status, code)


GOOD = {
    "to the limits": b"GET /echo?%b HTTP/1.1\r\nHost: x\r\na: %b\r\n\r\n" % (b"x" * 16_000, b"b" * 32_000),
    "100 fields": b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 99 + b"\r\n",
    "HTTP/1.0 without Host": b"GET /echo HTTP/1.0\r\n\r\n",
    "chunked": post(CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n"),
    "head and 50 kB body at once": post(b"Content-Length: 50000", body=b"x" * 50_000),
}


H2C = [b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAM"]


@pytest.mark.parametrize("cut", [None, 20, -14, -7])
def test_an_offer_of_another_protocol_is_ignored(hasty: Running, cut: int | None) -> None:
    raw = post(*H2C, b"Content-Length: 7", body=b"GET / H")
    with hasty.connect() as connection:
        connection.sendall(raw[:cut])
        if cut is not None:
            connection.sendall(raw[cut:])
        assert until(connection, b"HTTP/1.1 200 ").endswith(b"7")
        connection.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"\r\n".join(H2C) + b"\r\n\r\n" + GET)
        until(connection, b"HTTP/1.1 200 ", 2)
    assert (b"upgrade", b"h2c") not in hasty.application.headers


def test_a_refusal_after_a_good_request_is_told(hasty: Running) -> None:
    with hasty.connect() as connection:
        connection.sendall(GET)
        until(connection, b"\r\n\r\n0")
        connection.sendall(b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n")
        check_problem(everything(connection), 400, BAD_REQUEST)


@pytest.mark.parametrize("name", GOOD)
def test_what_fits_is_served_and_then_kept_alive(hasty: Running, name: str) -> None:
    with hasty.connect() as connection:
        connection.sendall(GOOD[name])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        if b"HTTP/1.0" not in GOOD[name]:
            connection.sendall(GET)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert len(hasty.watch) == 0


def test_trailers_do_not_reach_the_application(hasty: Running) -> None:
    raw = post(CHUNKED, body=b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
    with hasty.connect() as connection:
        connection.sendall(raw)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert [name for name, _ in hasty.application.headers] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize(
    "start",
    [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n", post(b"Content-Length: 9", body=b"x"),
     post(CHUNKED, body=b"1\r\nx\r\n")],
)  # fmt: skip
def test_what_stops_half_way_is_told_so(hasty: Running, start: bytes) -> None:
    started = time.monotonic()
    check_problem(exchange(hasty, start), 408, "request_timeout")
    assert 0.3 < time.monotonic() - started < 3


def test_half_a_request_after_a_whole_one(hasty: Running) -> None:
    with hasty.connect() as connection:
        connection.sendall(GET)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /")
        check_problem(everything(connection), 408, "request_timeout")


def test_a_silent_connection_is_closed_without_a_word(hasty: Running) -> None:
    assert exchange(hasty) == b""


def drip(server: Running, head: bytes, part: bytes) -> bytes:
    """Send one part every tenth of the patience until the server has had enough."""
    with server.connect() as connection:
        connection.sendall(head)
        connection.settimeout(Hasty.patience_s / 10)
        for _ in range(100):
            try:
                return everything(connection)
            except TimeoutError:
                connection.sendall(part)
        raise AssertionError("the server waited all the time")


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: x\r\n", post(b"Content-Length: 10000")])
def test_drips_are_not_progress(hasty: Running, head: bytes) -> None:
    check_problem(drip(hasty, head, b"a: b\r\n"), 408, "request_timeout")


def test_a_slow_body_is_told_to_the_application(hasty: Running) -> None:
    hasty.application.disconnected.clear()
    exchange(hasty, post(b"Content-Length: 9"))
    assert hasty.application.disconnected.wait(5)


def test_a_stream_outlives_every_limit_and_can_be_aborted(hasty: Running) -> None:
    hasty.application.disconnected.clear()
    with hasty.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        until(connection, b"hello")
        connection.settimeout(2 * Hasty.patience_s)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert len(hasty.watch) == 0
        held = hasty.application.connection
        assert held.write_buffer_size() == 0
        held.loop.call_soon_threadsafe(held.abort)
        connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert hasty.application.disconnected.wait(5)


@pytest.mark.parametrize("garbage", [b"\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b"GET /"])
def test_garbage_after_a_stream_writes_nothing_into_it(hasty: Running, garbage: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        received = until(connection, b"hello")
        connection.sendall(garbage)
        with contextlib.suppress(ConnectionResetError):
            received += everything(connection)
        assert received.count(b"HTTP/1.1") == 1


def test_an_early_answer_is_not_lost_while_the_body_still_comes(hasty: Running) -> None:
    size = 4 * 1024 * 1024
    with hasty.connect() as connection:
        connection.sendall(post(b"Content-Length: %d" % size, path=b"/early"))
        for _ in range(size // 65536):
            connection.sendall(b"x" * 65536)
        connection.sendall(GET)
        until(connection, b"HTTP/1.1 200 ", 2)


def test_an_unwanted_body_does_not_come_for_ever(hasty: Running) -> None:
    with hasty.connect() as connection:
        connection.sendall(post(CHUNKED, path=b"/early"))
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with pytest.raises(OSError):
            connection.sendall(chunk * (2 * MAX_REQUEST_BYTES // 65536))


def test_leftovers_do_not_keep_a_connection_open(hasty: Running) -> None:
    """Bytes stop the keep-alive timer; empty lines are no request, so it has to start again."""
    hasty.config.timeout_keep_alive = 1
    with hasty.connect() as connection:
        connection.sendall(GET)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"\r\n")
        assert connection.recv(1) == b""


def test_upload_continues_only_when_it_is_asked_for(hasty: Running) -> None:
    with hasty.connect() as connection:
        connection.sendall(post(b"Content-Length: 1", b"Expect: 100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"x")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


async def test_the_small_event_wakes_all_and_gathers_none() -> None:
    event = _Event()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(event.wait(), 0)
    waiting = [asyncio.create_task(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert event._waiters is not None
    assert len(event._waiters) == 3
    event.set()
    assert await asyncio.gather(*waiting, event.wait()) == [True] * 4
    event.clear()
    assert not event.is_set()
