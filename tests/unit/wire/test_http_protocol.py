"""The HTTP protocol on a real server, spoken to byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
from collections.abc import Iterator

import pytest

from app.http.cycle import Event
from app.http.limits import MAX_REQUEST_BYTES, MAX_TARGET_BYTES
from tests.patience import PATIENCE_S, wait_until
from tests.unit.wire.http_server import (
    GET,
    Patient,
    Running,
    check_problem,
    everything,
    exchange,
    post,
    until,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    with Running(Patient) as running:
        yield running


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
def test_refusals(server: Running, raw: bytes, status: int, code: str, pieces: str) -> None:
    step = len(raw) if pieces == "whole" else max(7, len(raw) // 50)
    parts = [raw[at : at + step] for at in range(0, len(raw), step)]
    check_problem(exchange(server, *parts), status, code)


GOOD = {
    "to the limits": b"GET /echo?%b HTTP/1.1\r\nHost: x\r\na: %b\r\n\r\n" % (b"x" * 16_000, b"b" * 32_000),
    "100 fields": b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 99 + b"\r\n",
    "HTTP/1.0": b"GET /echo HTTP/1.0\r\nHost: x\r\n\r\n",
    "chunked": post(CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n"),
    "head and 50 kB body at once": post(b"Content-Length: 50000", body=b"x" * 50_000),
}


H2C = [b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAM"]


@pytest.mark.parametrize("cut", [None, 20, -14, -7])
def test_an_offer_of_another_protocol_is_ignored(server: Running, cut: int | None) -> None:
    raw = post(*H2C, b"Content-Length: 7", body=b"GET / H")
    with server.connect() as connection:
        connection.sendall(raw[:cut])
        if cut is not None:
            connection.sendall(raw[cut:])
        assert until(connection, b"HTTP/1.1 200 ").endswith(b"7")
        connection.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"\r\n".join(H2C) + b"\r\n\r\n" + GET)
        until(connection, b"HTTP/1.1 200 ", 2)
    assert (b"upgrade", b"h2c") not in server.application.headers


def test_any_number_of_offers_in_one_segment_is_answered(server: Running) -> None:
    offer = b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"\r\n".join(H2C) + b"\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(offer * 2_000)
        until(connection, b"HTTP/1.1 200 ", 2_000)


def test_an_answer_without_a_length_has_no_chunks_for_a_client_that_knows_none(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.0\r\nHost: x\r\n\r\n")
        head, _, body = until(connection, b"hello").partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == b"hello"


@pytest.mark.parametrize("before", [b"", GET])
def test_empty_lines_do_not_keep_a_connection_open(before: bytes) -> None:
    with Running(Patient, timeout_keep_alive=1) as server, server.connect() as connection:
        connection.sendall(before)

        def is_closed() -> bool:
            server.pass_time(Patient.patience_s / 10)
            try:
                connection.sendall(b"\r\n")
            except ConnectionError:
                return True
            return False

        wait_until(is_closed)


def test_a_refusal_after_a_good_request_is_told(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(GET)
        until(connection, b"\r\n\r\n0")
        connection.sendall(b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n")
        check_problem(everything(connection), 400, BAD_REQUEST)


@pytest.mark.parametrize("name", GOOD)
def test_what_fits_is_served_and_then_kept_alive(server: Running, name: str) -> None:
    with server.connect() as connection:
        connection.sendall(GOOD[name])
        until(connection, b"HTTP/1.1 200 ")
        if b"HTTP/1.0" not in GOOD[name]:
            connection.sendall(GET)
            until(connection, b"HTTP/1.1 200 ")
            end = server.end_of(connection)
            assert not server.look(lambda: end in server.shared.senders)


def test_trailers_do_not_reach_the_application(server: Running) -> None:
    raw = post(CHUNKED, body=b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
    with server.connect() as connection:
        connection.sendall(raw)
        until(connection, b"HTTP/1.1 200 ")
    assert b"authorization" not in dict(server.application.headers)


@pytest.mark.parametrize(
    "start",
    [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n", post(b"Content-Length: 9", body=b"x"),
     post(CHUNKED, body=b"1\r\nx\r\n")],
)  # fmt: skip
def test_what_stops_half_way_is_told_so(server: Running, start: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(start)
        server.await_part(connection)
        server.pass_time(0.9 * Patient.patience_s)
        check_silent(connection, 3 * Patient.tick_s)
        server.pass_time(0.2 * Patient.patience_s)
        check_problem(everything(connection), 408, "request_timeout")


def check_silent(connection: socket.socket, seconds: float) -> None:
    """The server neither says anything in this time nor closes."""
    connection.settimeout(seconds)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(PATIENCE_S)


def test_half_a_request_after_a_whole_one(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(GET)
        until(connection, b"\r\n\r\n0")
        connection.sendall(b"GET /")
        server.await_part(connection)
        server.pass_time(Patient.patience_s)
        check_problem(everything(connection), 408, "request_timeout")


def test_a_silent_connection_is_closed_without_a_word(server: Running) -> None:
    with server.connect() as connection:
        wait_until(lambda: server.end_of(connection) is not None)
        server.pass_time(Patient.patience_s)
        assert everything(connection) == b""


def drip(server: Running, head: bytes, part: bytes) -> bytes:
    """Send one part every tenth of the patience until the patience is over; what the server says then."""
    with server.connect() as connection:
        connection.sendall(head)
        end = server.await_part(connection)
        for _ in range(9):
            server.pass_time(Patient.patience_s / 10)
            before = end._received
            connection.sendall(part)
            wait_until(lambda: end._received == before + len(part))  # noqa: B023
        server.pass_time(Patient.patience_s / 5)
        return everything(connection)


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: x\r\n", post(b"Content-Length: 10000")])
def test_drips_are_not_progress(server: Running, head: bytes) -> None:
    check_problem(drip(server, head, b"a: b\r\n"), 408, "request_timeout")


def test_a_slow_body_is_told_to_the_application(server: Running) -> None:
    server.application.disconnected.clear()
    with server.connect() as connection:
        connection.sendall(post(b"Content-Length: 9"))
        server.await_part(connection)
        server.pass_time(Patient.patience_s)
        everything(connection)
    assert server.application.disconnected.wait(PATIENCE_S)


def test_a_stream_outlives_every_limit_and_can_be_aborted(server: Running) -> None:
    server.application.disconnected.clear()
    with server.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        until(connection, b"hello")
        server.pass_time(2 * Patient.patience_s)
        check_silent(connection, 3 * Patient.tick_s)
        end = server.end_of(connection)
        assert not server.look(lambda: end in server.shared.senders)
        held = server.application.connection
        assert held.write_buffer_size() == 0
        held.loop.call_soon_threadsafe(held.abort)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert server.application.disconnected.wait(PATIENCE_S)


@pytest.mark.parametrize("garbage", [b"\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b"GET /"])
def test_garbage_after_a_stream_writes_nothing_into_it(server: Running, garbage: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        received = until(connection, b"hello")
        connection.sendall(garbage)
        wait_until(lambda: (end := server.end_of(connection)) is None or end._phase_began >= 0)
        server.pass_time(Patient.patience_s)
        with contextlib.suppress(ConnectionResetError):
            received += everything(connection)
        assert received.count(b"HTTP/1.1") == 1


def test_an_early_answer_is_not_lost_while_the_body_still_comes(server: Running) -> None:
    with server.connect() as connection:
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
    server: Running, head: bytes, status: bytes
) -> None:
    """A socket that is closed answers what still comes with a reset, which takes the answer along."""
    with server.connect() as connection:
        connection.sendall(head)
        select.select([connection], [], [])  # It has answered.
        connection.sendall(b"x" * MANY_BYTES)
        assert everything(connection).split(b" ", 2)[1] == status


def test_an_unwanted_body_does_not_come_for_ever(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(post(CHUNKED, path=b"/early"))
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with pytest.raises(ConnectionError):
            connection.sendall(chunk * (2 * MAX_REQUEST_BYTES // 65536))


def test_leftovers_do_not_keep_a_connection_open() -> None:
    """Bytes stop the keep-alive timer; empty lines are no request, so it has to start again."""
    with Running(Patient, timeout_keep_alive=1) as server, server.connect() as connection:
        connection.sendall(GET)
        until(connection, b"\r\n\r\n0")
        with contextlib.suppress(ConnectionError):  # A machine that stopped finds it closed already.
            connection.sendall(b"\r\n")
            assert connection.recv(1) == b""


def test_upload_continues_only_when_it_is_asked_for(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(post(b"Content-Length: 1", b"Expect: 100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"x")
        assert until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("body", [b"", b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["none", "a request"])
def test_an_upload_that_is_refused_unread_ends_the_connection(server: Running, body: bytes) -> None:
    """What comes next may be the body or another request."""
    with server.connect() as connection:
        length = b"Content-Length: %d" % (len(body) + 1)
        connection.sendall(post(length, b"Expect: 100-continue", path=b"/early"))
        answer = until(connection, b"\r\n\r\n")
        assert b"connection: close\r\n" in answer
        connection.sendall(body)
        assert b"HTTP/1.1" not in answer[8:] + everything(connection)


async def test_the_small_event_wakes_all_and_gathers_none() -> None:
    event = Event()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await event.wait()
    waiting = [asyncio.create_task(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert event._waiters is not None
    assert len(event._waiters) == 3
    event.set()
    assert await asyncio.gather(*waiting, event.wait()) == [True] * 4
    event.clear()
    assert not event.is_set()
