"""A burst of tiny requests or chunks: how many a connection takes before it turns to the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.http.turns import MAX_PARTS, MAX_PIECE_BYTES, MAX_PIPELINED
from tests.patience import PATIENCE_S, wait_until
from tests.unit.wire.http_server import GET, Patient, Running, everything, post, until

BYTES = 240_000
SMALLEST = len(b"GET / HTTP/1.1\r\nHost:x\r\n\r\n")
IN_A_PIECE = MAX_PIECE_BYTES // SMALLEST + 1
CHUNK = b"1\r\nx\r\n"
POST = post(b"Content-Length: 1", body=b"x")
HELD = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"


class Counting(Patient):
    """Counts the requests and the pieces of bodies that it takes in one call, and in a turn of the loop.
    A turn may hold two calls: the loop calls first what waits, then what reads."""

    parsed = most = most_in_a_call = 0

    def _parsed(self, data: bytes) -> bool:
        before = Counting.parsed
        done = super()._parsed(data)
        Counting.most_in_a_call = max(Counting.most_in_a_call, Counting.parsed - before)
        return done

    def on_headers_complete(self) -> None:
        Counting.parsed += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        Counting.parsed += 1
        super().on_body(body)


def _count(server: Running) -> None:
    Counting.most, Counting.parsed = max(Counting.most, Counting.parsed), 0
    if not server.should_exit:
        server.clock.loop.call_soon(_count, server)


@pytest.fixture
def server() -> Iterator[Running]:
    Counting.parsed = Counting.most = Counting.most_in_a_call = 0
    with Running(Counting) as running:
        yield running


@pytest.mark.parametrize("request_bytes", [GET, POST], ids=["GET", "POST"])
def test_a_burst_of_requests_is_taken_in_turns_and_answered(server: Running, request_bytes: bytes) -> None:
    count = BYTES // len(request_bytes)
    server.clock.loop.call_soon_threadsafe(_count, server)
    with server.connect() as connection:
        connection.sendall(request_bytes * count)
        answers = until(connection, b"HTTP/1.1 200 OK", count)
    assert answers.count(b"HTTP/1.1") == count
    assert server.look(lambda: Counting.most_in_a_call) <= MAX_PIPELINED + IN_A_PIECE
    assert server.look(lambda: Counting.most) <= 2 * (MAX_PIPELINED + IN_A_PIECE)


def test_a_burst_of_chunks_is_taken_in_turns_and_is_whole(server: Running) -> None:
    count = BYTES // len(CHUNK)
    server.clock.loop.call_soon_threadsafe(_count, server)
    with server.connect() as connection:
        connection.sendall(post(b"Transfer-Encoding: chunked") + CHUNK * count + b"0\r\n\r\n" + GET)
        answer = until(connection, b"HTTP/1.1 200 OK", 2)
    assert b"\r\n\r\n%d" % count in answer
    most = MAX_PARTS + MAX_PIECE_BYTES // len(CHUNK)
    assert server.look(lambda: Counting.most_in_a_call) <= most
    assert server.look(lambda: Counting.most) <= 2 * most


def test_behind_an_answer_that_goes_on_few_requests_are_parsed_and_the_rest_counts(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(HELD)
        until(connection, b"hello")
        connection.sendall(GET * (BYTES // len(GET)))
        end = server.end_of(connection)
        wait_until(lambda: server.look(lambda: len(end.pipeline)) >= MAX_PIPELINED)
        queued, waiting = server.look(lambda: (len(end.pipeline), len(end._waiting)))
        assert queued <= MAX_PIPELINED + IN_A_PIECE
        assert 0 < waiting < BYTES - MAX_PIPELINED * len(GET)
        assert server.look(lambda: (server.shared.budget.held_bytes, end.flow.read_paused)) == (waiting, True)


def test_a_request_with_others_behind_it_knows_when_its_connection_is_gone(server: Running) -> None:
    """Or it writes to a connection that is closed, which is an error with a traceback."""
    with server.connect() as connection:
        connection.sendall(HELD + GET)
        until(connection, b"hello")
        end = server.end_of(connection)
        wait_until(lambda: server.look(lambda: len(end.pipeline)) == 1)
    assert server.application.disconnected.wait(PATIENCE_S)
    assert server.look(lambda: server.server_state.total_requests) == 0


def test_what_waits_behind_the_last_answer_is_not_carried_out(server: Running) -> None:
    last = post(b"Content-Length: 1", b"Connection: close", body=b"x")
    with server.connect() as connection:
        connection.sendall(last + POST * 1000)
        assert everything(connection).count(b"HTTP/1.1 200 ") == 1
    assert server.look(lambda: server.server_state.total_requests) == 1


def test_the_last_answer_can_be_read_though_more_is_sent_after_it(server: Running) -> None:
    """A reset would take it from the client: so the server half-closes, and reads on for a moment."""
    with server.connect() as connection:
        connection.sendall(post(b"Content-Length: 1", b"Connection: close", body=b"x"))
        wait_until(lambda: server.look(lambda: server.server_state.total_requests) == 1)
        for _ in range(3):
            connection.sendall(POST)
        assert everything(connection).count(b"HTTP/1.1 200 ") == 1
    assert server.look(lambda: server.server_state.total_requests) == 1


def test_a_refusal_behind_a_burst_of_chunks_can_be_read(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(post(b"Transfer-Encoding: chunked") + CHUNK * 1000 + b"zz\r\n" + CHUNK * 10_000)
        assert everything(connection).startswith(b"HTTP/1.1 400 ")
