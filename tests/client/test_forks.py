"""A forked child has connections of its own, and its parent's are as if there were no child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from tests.client.raw_server import Exchange, RawServer, answer, chunks, replies, stream_head
from tests.patience import PATIENCE_S
from tests.repo.test_tree import ROOT

DEADLINE = "2100-01-01T00:00:00Z"


def run(name: str, server: RawServer, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Runs one program of `forking` to its end. Its stdin ends when `meanwhile` has returned."""
    command = [sys.executable, "-P", "-m", "tests.client.forking", name, server.url]
    paths = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as made:
        try:
            meanwhile()
            _, said = made.communicate(timeout=PATIENCE_S)
        finally:
            made.kill()
    assert made.returncode == 0, said
    assert "Exception" not in said, said


def message(number: int) -> dict[str, object]:
    return {"id": number, "channel": "a", "seq": number, "data": number, "created_at": "2026-01-01T00:00:00Z"}


def event(kind: str, content: dict[str, object]) -> bytes:
    return chunks(f"event: {kind}\ndata: {json.dumps(content)}\n\n".encode(), end=False)


def published(number: int) -> bytes:
    """The answer to a publish; the connection stays open."""
    body = {"id": number, "seq": number, "channel": "a", "created_at": "2026-01-01T00:00:00Z"}
    return answer(201, body).replace(b"Connection: close\r\n", b"")


def test_a_child_publishes_over_a_connection_of_its_own(raw_server: RawServer) -> None:
    on_first = b""

    def parents(exchange: Exchange) -> None:
        nonlocal on_first
        exchange.send(published(1))
        while not on_first.endswith(b"}") and (part := exchange.receive()):
            on_first += part
        exchange.send(published(3))
        exchange.hold()

    raw_server.scripts = [parents, lambda exchange: exchange.send(published(2))]
    run("publish", raw_server)
    assert (b'"parent"' in on_first, b'"child"' in on_first) == (True, False)
    assert [b'"child"' in seen.body for seen in raw_server.seen] == [False, True]


def test_a_child_reads_on_over_a_connection_of_its_own(raw_server: RawServer) -> None:
    childs_is_over, parents_is_over = threading.Event(), threading.Event()

    def parents(exchange: Exchange) -> None:
        exchange.send(stream_head() + event("message", message(1)))
        assert childs_is_over.wait(PATIENCE_S)
        exchange.send(event("message", message(2)))
        exchange.hold()
        parents_is_over.set()

    def childs(exchange: Exchange) -> None:
        exchange.send(stream_head() + event("message", message(2)))
        exchange.hold()
        childs_is_over.set()

    raw_server.scripts = [parents, childs]
    # A child that lives on does not keep the parent's connection open.
    run("stream", raw_server, lambda: parents_is_over.wait(PATIENCE_S))
    assert parents_is_over.is_set()
    assert [seen.headers["last-event-id"] for seen in raw_server.seen] == ["0", "1"]


def test_a_child_waits_for_nothing_that_was_held_at_the_fork(raw_server: RawServer) -> None:
    def held(exchange: Exchange) -> None:
        if "consume" in exchange.seen.path:
            exchange.send(stream_head() + event("delivery", delivery("r1")))
        else:
            exchange.send(stream_head() + event("message", message(1)))
        exchange.hold()

    raw_server.scripts = [held]
    run("locks", raw_server)


def delivery(receipt: str) -> dict[str, object]:
    return {"message": message(1), "receipt": receipt, "attempt": 1, "deadline": DEADLINE}


def test_a_child_is_another_member(raw_server: RawServer) -> None:
    def members(receipt: str) -> Callable[[Exchange], None]:
        def script(exchange: Exchange) -> None:
            exchange.send(stream_head() + event("delivery", delivery(receipt)))
            exchange.hold()

        return script

    def acks(exchange: Exchange) -> None:
        assert json.loads(exchange.seen.body) == {"receipts": ["r1"]}
        exchange.send(answer(200, {"results": [{"receipt": "r1", "status": "acked"}]}))

    raw_server.scripts = [members("r1"), members("r2"), acks]
    run("consume", raw_server)
    assert [seen.path.rpartition("/")[2] for seen in raw_server.seen] == ["consume", "consume", "ack"]


def test_a_child_has_nothing_that_was_settled_for_its_parent(raw_server: RawServer) -> None:
    def settled(*numbers: int) -> bytes:
        return answer(200, {"deliveries": [{"attempt": 1, "message": message(one)} for one in numbers]})

    raw_server.scripts = replies(settled(1, 2), settled(3))
    run("auto", raw_server)
    assert len(raw_server.seen) == 2


def test_asyncio_refuses_in_a_child_what_its_parent_used(raw_server: RawServer) -> None:
    childs_came = threading.Event()

    def parents(exchange: Exchange) -> None:
        exchange.send(stream_head() + event("message", message(1)))
        assert childs_came.wait(PATIENCE_S)
        exchange.send(event("message", message(2)))
        exchange.hold()

    def childs(exchange: Exchange) -> None:
        exchange.send(published(3))
        childs_came.set()

    raw_server.scripts = [parents, childs]
    run("asynchronous", raw_server)
