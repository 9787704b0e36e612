"""What connections share: their number, the bytes held for them, and readers that do not read."""

from __future__ import annotations

import contextlib
import socket

import pytest

import app.http.protocol
from app.http.connections import Budget, buffers
from app.metrics.registry import CUT_OFF
from app.process.memory import WORTH_BYTES, GivingBack
from tests.patience import PATIENCE_S, wait_until
from tests.unit.wire.http_server import (
    CHUNK_BYTES,
    GET,
    GOODBYE,
    MUCH_BYTES,
    Patient,
    Running,
    check_problem,
    everything,
    until,
)

MUCH = b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n"

HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Holding:
    def __init__(self) -> None:
        self.gave_way = 0

    def give_way(self) -> None:
        self.gave_way += 1


def test_who_holds_a_part_the_longest_gives_way() -> None:
    budget = Budget(100)
    first, second, third = Holding(), Holding(), Holding()
    budget.hold(first, 40)
    budget.hold(second, 40)
    budget.hold(first, 50)
    assert (first.gave_way, second.gave_way, budget.held_bytes) == (0, 0, 90)
    budget.hold(third, 60)
    assert (first.gave_way, second.gave_way, third.gave_way) == (1, 0, 0)
    assert (budget.held_bytes, budget.gave_way) == (100, 1)
    budget.release(second)
    budget.release(third)
    assert budget.held_bytes == 0


def test_a_request_at_work_stays_and_the_newcomer_gives_way() -> None:
    budget = Budget(100)
    working, new = Holding(), Holding()
    budget.hold(working, 90)
    budget.commit(working)
    budget.hold(new, 20)
    assert (working.gave_way, new.gave_way, budget.held_bytes) == (0, 1, 90)
    budget.release(working)
    assert budget.held_bytes == 0


def test_what_many_hold_counts_once_until_the_last_lets_go() -> None:
    budget = Budget(100)
    many = [Holding() for _ in range(10)]
    shared = b"x" * 60
    for one in many:
        budget.hold(one, 0, shared)
    assert budget.held_bytes == 60
    for one in many[:-1]:
        budget.release(one)
    assert budget.held_bytes == 60
    budget.release(many[-1])
    assert budget.held_bytes == 0


class Tight(Patient):
    buffer_bytes = 1024 * 1024


def test_unfinished_bodies_hold_no_more_than_the_budget_and_requests_go_on() -> None:
    with Running(Tight) as server, contextlib.ExitStack() as stack:
        half = HEAD % 400_000 + b"x" * 200_000
        unfinished = [stack.enter_context(server.connect()) for _ in range(20)]
        for connection in unfinished:
            connection.sendall(half)
            connection.sendall(b"x")
        budget = server.shared.budget
        wait_until(lambda: budget.gave_way >= 14)
        assert 0 < server.look(lambda: budget.held_bytes) <= Tight.buffer_bytes
        assert buffers()[1] >= 14
        answer = everything(unfinished[0])
        check_problem(answer, 429, "rate_limited")
        assert b"retry-after: 1" in answer
        with server.connect() as another:
            another.sendall(GET)
            until(another, b"HTTP/1.1 200 ")
        unfinished[-1].sendall(b"x" * 199_999)
        assert until(unfinished[-1], b"400000")
        for connection in unfinished:
            connection.close()
        server.pass_time(Tight.linger_s)  # Of those that were refused; the server reads nothing from them.
        wait_until(lambda: budget.held_bytes == 0 and not server.server_state.connections)


def test_answers_that_nobody_reads_hold_no_more_than_the_budget() -> None:
    with Running(Tight) as server, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(server.connect()) for _ in range(20)]
        for connection in readers:
            connection.sendall(MUCH)
        wait_until(lambda: server.shared.budget.gave_way >= 15)
        assert server.look(lambda: server.shared.budget.held_bytes) <= Tight.buffer_bytes
        for connection in readers:
            connection.close()
        wait_until(lambda: server.shared.budget.held_bytes == 0 and not server.server_state.connections)


def test_a_part_of_an_answer_that_waits_behind_another_counts_too() -> None:
    with Running(Patient) as server, server.connect() as connection:
        connection.sendall(MUCH)
        budget = server.shared.budget
        wait_until(lambda: server.look(lambda: budget.held_bytes) >= 2 * CHUNK_BYTES)
        assert server.look(lambda: budget.held_bytes) < 3 * CHUNK_BYTES


def test_a_request_behind_an_answer_that_nobody_reads_does_not_keep_its_bytes() -> None:
    with Running(Tight) as server, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(server.connect()) for _ in range(20)]
        budget = server.shared.budget
        for before, connection in enumerate(readers):
            connection.sendall(MUCH)
            wait_until(lambda: server.look(lambda: len(budget._held) + budget.gave_way) > before)  # noqa: B023
            with contextlib.suppress(ConnectionError):
                connection.sendall(GET)
        wait_until(lambda: budget.gave_way >= 15)
        assert server.look(lambda: budget.held_bytes) <= Tight.buffer_bytes
        assert not server.look(lambda: budget._committed)


class Impatient(Patient):
    slow_reader_s = 0.3


def slow_readers() -> float:
    return float(CUT_OFF.labels("slow_consumer")._value.get())


def test_a_reader_that_takes_nothing_is_told_goodbye_behind_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Here it reads on in time, however busy the machine is.
    monkeypatch.setattr(app.http.protocol, "GOODBYE_S", PATIENCE_S)
    before = slow_readers()
    with Running(Impatient) as server, server.connect() as connection:
        connection.sendall(MUCH)
        wait_until(lambda: slow_readers() == before + 1)
        told = everything(connection)
        assert told.endswith(b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOODBYE), GOODBYE))
        assert len(told) < MUCH_BYTES


def test_a_reader_that_takes_little_at_a_time_is_not_cut_off() -> None:
    before = slow_readers()
    with Running(Patient) as server, server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        connection.sendall(MUCH)
        until(connection, b"\r\n\r\n")
        end, readers = server.end_of(connection), server.shared.readers

        def takes_little() -> bool:
            assert connection.recv(16 * 1024)
            return server.look(lambda: end in readers and end._untaken_bytes() < end._untaken)

        for _ in range(5):
            wait_until(takes_little)
            server.pass_time(Patient.slow_reader_s)
            wait_until(lambda: server.look(lambda: readers._owing.get(end, 0.0) > server.clock.time()))
        assert slow_readers() == before
        assert GOODBYE not in connection.recv(1024)


class Few(Patient):
    max_connections = 5


def test_one_connection_too_many_is_told_so_and_idle_ones_make_room() -> None:
    with Running(Few) as server, contextlib.ExitStack() as stack:
        busy = [stack.enter_context(server.connect()) for _ in range(Few.max_connections)]
        for connection in busy:
            connection.sendall(GET[:-2])
        with server.connect() as another:
            answer = everything(another)
        check_problem(answer, 429, "rate_limited")
        assert b"retry-after: 2" in answer
        busy[0].sendall(b"\r\n")
        until(busy[0], b"\r\n\r\n0")
        # It is idle now, so it makes room for the next.
        wait_until(lambda: _is_served(server))
        assert busy[0].recv(1) == b""


def _is_served(server: Running) -> bool:
    with server.connect() as connection:
        connection.sendall(GET)
        with contextlib.suppress(ConnectionError):
            return connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    return False


@pytest.mark.parametrize("times", [1, 3])
def test_what_is_held_is_given_back_with_each_request(times: int) -> None:
    with Running(Tight) as server, server.connect() as connection:
        for _ in range(times):
            connection.sendall(HEAD % 500_000)
            connection.sendall(b"x" * 500_000)
            until(connection, b"500000")
        wait_until(lambda: server.shared.budget.held_bytes == 0)


def test_memory_is_given_back_after_a_peak_and_once() -> None:
    giving_back = GivingBack()
    held = [0, WORTH_BYTES // 2, 0, WORTH_BYTES * 2, WORTH_BYTES, WORTH_BYTES // 4, 0, 0]
    assert [giving_back.note(size) for size in held] == [False] * 5 + [True, False, False]
