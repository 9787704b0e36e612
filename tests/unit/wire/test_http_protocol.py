"""The HTTP protocol on a real server, spoken to byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import time
from collections.abc import Iterator

import pytest

from app.http_parts import Event
from app.http_protocol import MAX_REQUEST_BYTES, MAX_TARGET_BYTES
from tests.unit.wire.http_server import GET, Hasty, Running, check_problem, everything, exchange, post, until


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    with Running(Hasty) as server:
        yield server


BAD_REQUEST = "invalid_request"
MANY_BYTES = 4 * 1024 * 1024
OLD = (
    b"POST /echo HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%b"
)
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
    ("HTTP/1.0 without Host", b"GET /echo HTTP/1.0\r\n\r\n", 400, BAD_REQUEST),
    ("HTTP/0.9", b"GET /echo\r\n\r\n", 400, BAD_REQUEST),
    ("HTTP/2.0 without Host", b"GET /echo HTTP/2.0\r\n\r\n", 400, BAD_REQUEST),
    ("foreign Host", b"GET /echo HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, "host_not_allowed"),
    ("foreign Host on HTTP/1.0", b"GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n", 421, "host_not_allowed"),
    ("foreign Host on HTTP/2.0", b"GET / HTTP/2.0\r\nHost: evil.example\r\n\r\n", 421, "host_not_allowed"),
    ("foreign Origin", b"GET /echo HTTP/1.1\r\nHost: x\r\nOrigin: null\r\n\r\n", 403, "origin_not_allowed"),
    ("foreign WebSocket", b"GET /echo HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\n"
     b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 403, "origin_not_allowed"),
    ("no media type", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 415,
     "unsupported_media_type"),
    ("two Hosts", b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400, BAD_REQUEST),
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
    ("version 2.0", b"GET /echo HTTP/2.0\r\nHost: x\r\n\r\n", 400, BAD_REQUEST),
    ("version 0.9", b"GET /echo HTTP/0.9\r\nHost: x\r\n\r\n", 400, BAD_REQUEST),
    ("HTTP/1.0 without Host", b"GET /echo HTTP/1.0\r\n\r\n", 400, BAD_REQUEST),
    ("HTTP/1.0, chunked", OLD % b"0\r\n\r\n", 400, BAD_REQUEST),
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
    "HTTP/1.0": b"GET /echo HTTP/1.0\r\nHost: x\r\n\r\n",
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


def test_any_number_of_offers_in_one_segment_is_answered(hasty: Running) -> None:
    offer = b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"\r\n".join(H2C) + b"\r\n\r\n"
    with hasty.connect() as connection:
        connection.sendall(offer * 2_000)
        until(connection, b"HTTP/1.1 200 ", 2_000)


def test_an_answer_without_a_length_has_no_chunks_for_a_client_that_knows_none(hasty: Running) -> None:
    with hasty.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.0\r\nHost: x\r\n\r\n")
        head, _, body = until(connection, b"hello").partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == b"hello"


@pytest.mark.parametrize("before", [b"", GET])
def test_empty_lines_do_not_keep_a_connection_open(before: bytes) -> None:
    with Running(Hasty, timeout_keep_alive=1) as server, server.connect() as connection:
        connection.sendall(before)
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"\r\n")
                time.sleep(0.05)
            pytest.fail("it is still open")


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
            assert len(hasty.shared.senders) == 0


def test_trailers_do_not_reach_the_application(hasty: Running) -> None:
    raw = post(CHUNKED, body=b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
    with hasty.connect() as connection:
        connection.sendall(raw)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert b"authorization" not in dict(hasty.application.headers)


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
        assert len(hasty.shared.senders) == 0
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
    with hasty.connect() as connection:
        connection.sendall(post(b"Content-Length: %d" % MANY_BYTES, path=b"/early"))
        for _ in range(MANY_BYTES // 65536):
            connection.sendall(b"x" * 65536)
        connection.sendall(GET)
        until(connection, b"HTTP/1.1 200 ", 2)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (post(b"Content-Length: %d" % MANY_BYTES, b"Connection: close", path=b"/early"), b"200"),
        (post(b"Content-Length: %d" % MANY_BYTES, path=b"/early").replace(b"1.1", b"1.0", 1), b"200"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MANY_BYTES, b"415"),
    ],
    ids=["asked to close", "HTTP/1.0", "refused"],
)
def test_an_early_answer_that_closes_is_not_lost_while_the_body_still_comes(
    hasty: Running, head: bytes, status: bytes
) -> None:
    """A socket that is closed answers what still comes with a reset, which takes the answer along."""
    with hasty.connect() as connection:
        connection.sendall(head)
        select.select([connection], [], [])  # It has answered.
        connection.sendall(b"x" * MANY_BYTES)
        assert everything(connection).split(b" ", 2)[1] == status


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
    event = Event()
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
