"""WebSocket connections on a real server, spoken to byte by byte, as an attacker does."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.frames import Frame

import app.http.websocket
from app.http.websocket import FLOOD_S, MAX_EMPTY_FRAMES, MAX_FRAMES, MAX_LINES, MAX_MESSAGE_BYTES
from tests.patience import PATIENCE_S, wait_until
from tests.unit.wire.http_server import LONG_S, everything, until
from tests.websocket.echo import Application, EchoHttpProtocol, EchoServer, accept_all

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MIB = 1024 * 1024


class Patient(EchoHttpProtocol):
    __slots__ = ()
    patience_s = slow_reader_s = LONG_S
    linger_s = LONG_S / 10
    tick_s = 0.05
    buffer_bytes = 24 * MIB


@pytest.fixture(scope="module")
def running() -> Iterator[EchoServer]:
    with EchoServer(Patient) as server, pytest.MonkeyPatch.context() as patient:
        # Longer than the others: one of these may pass twice.
        patient.setattr(app.http.websocket, "CLOSE_S", 10 * LONG_S)
        # Their own limits would keep what these tests look for out of the log.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        yield server


@pytest.fixture
def server(running: EchoServer, caplog: pytest.LogCaptureFixture) -> Iterator[EchoServer]:
    """A server that has forgotten each connection, and logged nothing, when the test is over."""
    yield running
    accept_all(running)
    wait_until(lambda: not running.server_state.connections and running.echo.is_over)
    wait_until(lambda: running.shared.budget.held_bytes == 0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def request(*fields: bytes, path: bytes = b"/", version: bytes = b"1.1", offer: bool = True) -> bytes:
    """A request for an upgrade; without `offer` only its `Upgrade` is missing."""
    lines = [
        b"GET %b HTTP/%b" % (path, version),
        b"Host: x",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        *([b"Upgrade: websocket"] if offer else []),
        *fields,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def frame(opcode: int, payload: bytes = b"", fin: bool = True, length: int | None = None) -> bytes:
    """A frame of a client. It may announce another length than it has. The mask changes nothing."""
    length = len(payload) if length is None else length
    head = bytes([opcode | (0x80 if fin else 0)])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 65536:
        head += b"\xfe" + length.to_bytes(2, "big")
    else:
        head += b"\xff" + length.to_bytes(8, "big")
    return head + bytes(4) + payload


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


def closed(said: bytes) -> int:
    """The code of the only frame that the server sent."""
    assert said[:1] == b"\x88"
    assert said[1] == len(said) - 2
    return int.from_bytes(said[2:4], "big")


def opened(server: EchoServer) -> socket.socket:
    connection = server.connect()
    connection.sendall(request())
    answer = until(connection, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert answer.endswith(b"\r\n\r\n")
    return connection


def test_it_echoes(server: EchoServer) -> None:
    with opened(server) as connection:
        connection.sendall(frame(TEXT, b"words") + frame(BINARY, b"\xff"))
        assert until(connection, b"\xff") == b"\x81\x05words\x82\x01\xff"


def test_a_dripped_frame_is_read(server: EchoServer) -> None:
    with opened(server) as connection:
        for byte in frame(TEXT, b"x" * 200):
            connection.sendall(bytes([byte]))
        assert until(connection, b"x" * 200) == b"\x81\x7e\x00\xc8" + b"x" * 200


def test_pongs_keep_their_place_among_messages(server: EchoServer) -> None:
    with opened(server) as connection:
        parts = [frame(TEXT, b"a"), frame(PING, b"b"), frame(TEXT, b"c", fin=False), frame(PING, b"d")]
        connection.sendall(b"".join(parts) + frame(CONT, b"e") + closing(1000))
        assert everything(connection) == b"\x81\x01a\x8a\x01b\x8a\x01d\x81\x02ce\x88\x02\x03\xe8"


def test_short_fragments_take_no_memory(server: EchoServer) -> None:
    with opened(server) as connection:
        connection.sendall(frame(TEXT, b"a", fin=False))
        for _ in range(10):
            connection.sendall(frame(CONT, b"b", fin=False) * 10_000 + frame(PING))
            until(connection, b"\x8a\x00")
        wait_until(lambda: sum(isinstance(one, Frame) for one in gc.get_objects()) < 1000)
        connection.sendall(frame(CONT, b"z"))
        assert until(connection, b"z").endswith(b"a" + b"b" * 100_000 + b"z")


# Turns of the event loop.


class Turns:
    """What one end of a connection does with a single read, turn by turn."""

    def __init__(self, server: EchoServer, connection: socket.socket) -> None:
        self.server = server
        self.end = server.end_of(connection)
        self.loop = server.clock.loop
        self.seen: list[Any] = []
        self.held_bytes = 0
        self.was_paused = False
        server.echo.echoes[-1].received = self.seen.append  # type: ignore[assignment, method-assign]

    def read(self, data: bytes) -> list[int]:
        """How many messages were taken in each turn. Between two of them others have theirs."""
        self.server.look(lambda: self._read(data))
        wait_until(lambda: self.server.look(lambda: not self.end._frames.is_waiting))
        turns = [list(found) for is_turn, found in itertools.groupby(self.seen, bool) if is_turn]
        return list(map(len, turns))

    def _read(self, data: bytes) -> None:
        self.loop.call_soon(self._others)
        self.end.data_received(data)
        self.held_bytes, self.was_paused = self.server.shared.budget.held_bytes, self.end.flow.read_paused

    def _others(self) -> None:
        self.seen.append(b"")
        if self.end._turn is not None:
            self.loop.call_soon(self._others)


def test_a_turn_has_so_many_frames_and_the_others_wait(server: EchoServer) -> None:
    with opened(server) as connection:
        turns, message = Turns(server, connection), frame(TEXT, b"x")
        assert turns.read(message * (2 * MAX_FRAMES + 50)) == [MAX_FRAMES, MAX_FRAMES, 50]
        assert turns.was_paused
        assert turns.held_bytes == len(message) * (MAX_FRAMES + 50)
        assert not turns.end.flow.read_paused


def test_a_turn_has_so_many_lines(server: EchoServer) -> None:
    with opened(server) as connection:
        message = frame(TEXT, b"{}\n" * (MAX_LINES // 2 - 100))
        assert Turns(server, connection).read(message * 10) == [3, 3, 3, 1]


def test_a_message_larger_than_a_read_takes_one_turn(server: EchoServer) -> None:
    with opened(server) as connection:
        assert Turns(server, connection).read(frame(TEXT, b"x" * MAX_MESSAGE_BYTES)) == [1]


class Writes:
    """A transport that knows what was written to it."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))
        self.transport.write(data)


def test_the_pongs_of_a_turn_are_one_write(server: EchoServer) -> None:
    with opened(server) as connection:
        turns = Turns(server, connection)
        writes = turns.end.transport = Writes(turns.end.transport)
        texts = [b"%03d" % number for number in range(2 * MAX_FRAMES + 50)]
        turns.read(b"".join(frame(PING, text) for text in texts))
        pongs = [b"\x8a\x03" + text for text in texts]
        turn = slice(MAX_FRAMES), slice(MAX_FRAMES, 2 * MAX_FRAMES), slice(2 * MAX_FRAMES, None)
        assert writes.written == [b"".join(pongs[part]) for part in turn]
        assert until(connection, pongs[-1]) == b"".join(pongs)


@pytest.mark.parametrize("piece_bytes", [1, 1000])
def test_each_of_several_pings_is_answered(server: EchoServer, piece_bytes: int) -> None:
    texts = [b"ping %d" % number for number in range(10)]
    raw = b"".join(frame(PING, text) for text in texts)
    with opened(server) as connection:
        for first in range(0, len(raw), piece_bytes):
            connection.sendall(raw[first : first + piece_bytes])
        connection.sendall(closing(1000))
        assert everything(connection) == b"".join(b"\x8a\x06" + text for text in texts) + b"\x88\x02\x03\xe8"


EMPTY = {
    "pings": frame(PING),
    "long pings": frame(PING, b"x" * 125),
    "pongs": frame(PONG),
    "texts": frame(TEXT),
    "fragments": frame(TEXT, b"a", fin=False) + frame(CONT, fin=False) * 9 + frame(CONT, b"z"),
    "empty fragments": frame(TEXT, fin=False) + frame(CONT),
}


@pytest.mark.parametrize("flood", EMPTY.values(), ids=list(EMPTY))
def test_a_flood_of_empty_frames_ends(server: EchoServer, flood: bytes) -> None:
    with opened(server) as connection:
        connection.sendall(flood * (2 * MAX_EMPTY_FRAMES))
        said = everything(connection)
        assert said.endswith(b"\x88\x21\x03\xf0too many frames without content")
        assert said.count(b"\x8a") <= MAX_EMPTY_FRAMES + MAX_FRAMES


def test_what_is_no_flood_goes_on(server: EchoServer) -> None:
    with opened(server) as connection:
        for _ in range(3):
            connection.sendall(frame(PING) * MAX_EMPTY_FRAMES)
            until(connection, b"\x8a\x00", MAX_EMPTY_FRAMES)
            server.pass_time(FLOOD_S)
        # As some clients send a text piece by piece.
        message = frame(TEXT, b"x", fin=False) + frame(CONT)
        connection.sendall(message * (MAX_EMPTY_FRAMES + 1) + frame(PING))
        until(connection, b"\x8a\x00")


@pytest.mark.parametrize("length", [MAX_MESSAGE_BYTES + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_frame_that_is_too_long_is_refused_by_its_head(server: EchoServer, length: int) -> None:
    with opened(server) as connection:
        connection.sendall(frame(TEXT, length=length))
        assert closed(everything(connection)) == 1009


def test_a_client_that_goes_on_sending_still_reads_the_code(server: EchoServer) -> None:
    with opened(server) as connection:
        connection.sendall(frame(BINARY, b"x" * 8 * MIB))
        assert closed(everything(connection)) == 1009


def test_a_message_that_is_too_long_is_refused(server: EchoServer) -> None:
    with opened(server) as connection:
        half = b"x" * (MAX_MESSAGE_BYTES // 2)
        connection.sendall(frame(TEXT, half, fin=False) + frame(CONT, half + b"x"))
        assert closed(everything(connection)) == 1009


REFUSED = {
    "not masked": (b"\x81\x00", 1002),
    "reserved bits": (b"\xc1\x80" + bytes(4), 1002),
    "reserved opcode": (frame(3), 1002),
    "long ping": (frame(PING, b"x" * 126), 1002),
    "ping in fragments": (frame(PING, fin=False), 1002),
    "nothing to continue": (frame(CONT), 1002),
    "text within a text": (frame(TEXT, fin=False) + frame(TEXT), 1002),
    "close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "close with a reserved code": (closing(1005), 1002),
    "reason is not UTF-8": (closing(1000, b"\xff"), 1007),
    "not UTF-8": (frame(TEXT, b"\xff"), 1007),
    "half a character": (frame(TEXT, b"\xc3", fin=False) + frame(CONT, b"x"), 1007),
}


@pytest.mark.parametrize(("raw", "code"), REFUSED.values(), ids=list(REFUSED))
def test_refusals_have_their_codes(
    server: EchoServer, raw: bytes, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.http.websocket, "CLOSE_S", 0.2)
    with opened(server) as connection:
        connection.sendall(raw)
        assert closed(everything(connection)) == code


def test_a_close_within_a_message_is_a_close(server: EchoServer) -> None:
    with opened(server) as connection:
        connection.sendall(frame(TEXT, b"half", fin=False) + closing(1000))
        assert closed(everything(connection)) == 1000


def test_data_after_a_close_is_dropped(server: EchoServer) -> None:
    with opened(server) as connection:
        connection.sendall(closing(1001) + frame(TEXT, b"late") + frame(PING) + b"\xff" * 1000)
        assert closed(everything(connection)) == 1001


def test_an_answered_close_ends_the_connection(server: EchoServer) -> None:
    with opened(server) as connection:
        connection.sendall(frame(TEXT, b"close"))
        assert closed(until(connection, b"asked")) == 1000
        connection.sendall(closing(1000))
        assert everything(connection) == b""


def test_a_close_that_is_not_answered_ends_it_too(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.http.websocket, "CLOSE_S", 0.2)
    with opened(server) as connection:
        connection.sendall(frame(TEXT, b"close"))
        assert closed(everything(connection)) == 1000


@pytest.mark.parametrize("begun", [b"", frame(TEXT, b"half", fin=False), frame(TEXT, b"half", length=9)[:-1]])
def test_a_half_closed_connection_ends(server: EchoServer, begun: bytes) -> None:
    with opened(server) as connection:
        connection.sendall(begun)
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b""


class Flood:
    """Sends messages, and reads none of the answers."""

    PIECE = frame(TEXT, b"x" * 125) * 1000

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.sent_bytes = 0
        connection.setblocking(False)

    def is_stopped(self) -> bool:
        """Send as much as goes; whether no more does."""
        try:
            self.sent_bytes += self.connection.send(self.PIECE[self.sent_bytes % len(self.PIECE) :])
        except BlockingIOError:
            return True
        return False

    def is_cut_off(self, server: EchoServer) -> bool:
        """Go on, and let time pass for the server."""
        self.is_stopped()
        server.pass_time(Patient.slow_reader_s)
        return server.echo.echoes[-1].was_dropped


def test_a_flood_stops_where_answers_are_not_read(server: EchoServer) -> None:
    with opened(server) as connection:
        flood, end = Flood(connection), server.end_of(connection)
        wait_until(lambda: flood.is_stopped() and end.flow.read_paused)
        assert server.look(lambda: server.shared.budget.held_bytes) <= MIB
        wait_until(lambda: flood.is_cut_off(server))
        assert flood.sent_bytes < 256 * MIB
        connection.settimeout(PATIENCE_S)
        until(connection, b"\x88\x06\x0b\xc0slow")


def test_all_parts_of_an_incomplete_message_count(server: EchoServer) -> None:
    begun = frame(TEXT, b"x" * MIB, fin=False) + frame(CONT, b"x" * (MIB - 100), length=MIB)
    with contextlib.ExitStack() as stack:
        for count in range(1, 12):
            stack.enter_context(opened(server)).sendall(begun)
            wait_until(lambda: server.shared.budget.held_bytes > count * (2 * MIB - 200))  # noqa: B023
        echoes = server.echo.echoes[-11:]
        stack.enter_context(opened(server)).sendall(begun)
        stack.enter_context(opened(server)).sendall(begun)
        wait_until(lambda: echoes[0].was_dropped)
        assert not any(echo.was_dropped for echo in echoes[1:])


def test_noise_is_refused_and_forgotten(server: EchoServer) -> None:
    chance = random.Random(6455)
    for _ in range(200):
        with opened(server) as connection:
            for _ in range(chance.randrange(1, 4)):
                opcode, is_last = chance.choice([CONT, TEXT, BINARY, CLOSE, PING]), chance.random() < 0.7
                payload = chance.randbytes(chance.choice([0, 1, 2, 125, 126, 70_000]))
                connection.sendall(chance.choice([frame(opcode, payload, is_last), payload]))
            connection.shutdown(socket.SHUT_WR)
            everything(connection)


# The handshake.


def test_an_upgrade_may_follow_another_request(server: EchoServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + request())
        said = until(connection, b"HTTP/1.1 101 ")
        assert said.startswith(b"HTTP/1.1 426 ")
        connection.sendall(frame(TEXT, b"words"))
        assert until(connection, b"\x81\x05words")


@pytest.mark.parametrize("offer", [True, False])
def test_only_the_last_of_several_requests_is_upgraded(server: EchoServer, offer: bool) -> None:
    with server.connect() as connection:
        connection.sendall(request(offer=offer) + request())
        said = until(connection, b"HTTP/1.1 101 ")
        assert said.startswith(b"HTTP/1.1 426 ")
        connection.sendall(frame(TEXT, b"words") + closing(1000))
        assert everything(connection).endswith(b"\x81\x05words\x88\x02\x03\xe8")


def test_a_request_behind_an_upgrade_keeps_it_from_happening(server: EchoServer) -> None:
    with server.connect() as connection:
        connection.sendall(request() + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert everything(connection).count(b"HTTP/1.1 426 ") == 2


def test_a_frame_sent_with_the_handshake_ends_the_connection(server: EchoServer) -> None:
    with server.connect() as connection:
        connection.sendall(request() + frame(TEXT, b"early"))
        assert everything(connection) == b""


BODIES = {
    "length": request(b"Content-Length: 5") + b"12345",
    "chunked": request(b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "frame as a body": request(b"Content-Length: 11") + frame(TEXT, b"words"),
    "HTTP/1.0": request(version=b"1.0"),
}


@pytest.mark.parametrize("raw", BODIES.values(), ids=list(BODIES))
def test_an_offer_that_cannot_be_taken_is_ignored(server: EchoServer, raw: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(raw)
        assert until(connection, b"Upgrade header").startswith(b"HTTP/1.1 426 ")


def test_a_body_of_no_bytes_does_not_matter(server: EchoServer) -> None:
    with server.connect() as connection:
        connection.sendall(request(b"Content-Length: 0"))
        assert until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")


HANDSHAKES = {
    "no base64": b"Sec-WebSocket-Key: \xff\xfe",
    "two keys": b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
    "two versions": b"Sec-WebSocket-Version: 8",
    "bad subprotocol": b"Sec-WebSocket-Protocol: \xff,,",
    "bad connection": b'Connection: "',
}


@pytest.mark.parametrize("field", HANDSHAKES.values(), ids=list(HANDSHAKES))
def test_a_bad_handshake_is_refused(server: EchoServer, field: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(request(field))
        status = int(until(connection, b"\r\n\r\n").split()[1])
        assert status in (400, 426)


def test_an_extension_is_not_agreed_on(server: EchoServer) -> None:
    with server.connect() as connection:
        connection.sendall(request(b"Sec-WebSocket-Extensions: permessage-deflate; \xff"))
        answer = until(connection, b"\r\n\r\n").lower()
        assert answer.startswith(b"http/1.1 101 ")
        assert b"extensions" not in answer


def test_a_client_that_left_before_the_answer_is_forgotten(server: EchoServer) -> None:
    before = len(server.echo.echoes)
    with server.connect() as connection:
        connection.sendall(request(path=b"/late"))
    wait_until(lambda: len(server.echo.echoes) == before + 1)
    wait_until(lambda: server.echo.echoes[-1].was_dropped)


def test_an_answer_that_was_taken_late_does_not_end_the_upgraded_connection(server: EchoServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n" + request())
        before, last = 0, b""
        while b"HTTP/1.1 101 " not in last:
            part = connection.recv(65536)
            assert part
            before, last = before + len(part), last[-20:] + part
        assert before > Application.MUCH_BYTES
        server.pass_time(3 * Patient.slow_reader_s)
        time.sleep(3 * Patient.tick_s)  # It may be looked for those who are late.
        connection.sendall(frame(TEXT, b"words"))
        assert until(connection, b"\x81\x05words")
