"""A connection of another server: what it waits for, and what it drops."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from app.http.asgi import connection as module
from app.http.asgi.connection import AsgiConnection
from subscriptions.domain.errors import Code, GaplessError

Message = dict[str, Any]
DISCONNECT: Message = {"type": "http.disconnect"}


class Server:
    """The server's half: what a client sends, and what was sent to it."""

    def __init__(self, *comes: Message) -> None:
        self.comes = deque(comes)
        self.sent: list[Message] = []
        self.takes = asyncio.Event()
        self.takes.set()

    async def receive(self) -> Message:
        while not self.comes:
            await asyncio.sleep(0.01)
        return self.comes.popleft()

    async def send(self, message: Any) -> None:
        await self.takes.wait()
        self.sent.append(message)

    def connection(self, *headers: tuple[bytes, bytes], slow_reader_s: float = 60.0) -> AsgiConnection:
        scope = {"type": "http", "http_version": "1.1", "headers": list(headers)}
        return AsgiConnection(scope, self.receive, self.send, [(b"vary", b"Origin")], slow_reader_s)


def part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_that_stands_still_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    connection = Server().connection()
    with pytest.raises(GaplessError) as refused:
        await connection.receive()
    assert refused.value.code is Code.REQUEST_TIMEOUT


async def test_a_body_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REQUEST_BYTES", 5)
    connection = Server(part(b"four", more=True), part(b"more", more=True)).connection()
    assert (await connection.receive())["body"] == b"four"
    with pytest.raises(GaplessError) as refused:
        await connection.receive()
    assert refused.value.code is Code.PAYLOAD_TOO_LARGE


async def test_a_handler_is_told_that_its_client_left() -> None:
    server = Server(part(b"", more=False))
    connection = server.connection()
    lost = asyncio.Event()
    connection.on_lost = lost.set
    server.comes.append(DISCONNECT)
    await lost.wait()
    assert connection.is_closing
    assert await connection.receive() == DISCONNECT
    await connection.send({"type": "http.response.start", "status": 200})
    assert server.sent == []
    await connection.close()


async def test_who_waits_for_the_end_gets_it_while_it_is_watched() -> None:
    """Frameworks wait with `receive` too."""
    server = Server(part(b"", more=False))
    connection = server.connection()
    connection.on_lost = lambda: None
    waiting = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)
    server.comes.append(DISCONNECT)
    assert await waiting == DISCONNECT
    await connection.close()


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    server = Server()
    connection = server.connection(slow_reader_s=0.0)
    lost = asyncio.Event()
    connection.on_lost = lost.set
    server.takes.clear()
    await connection.send({"type": "http.response.start", "status": 200})
    assert lost.is_set()
    # The server is told by the error that the answer is not whole.
    with pytest.raises(ConnectionAbortedError):
        await connection.close()


@pytest.mark.parametrize("asks", [False, True])
async def test_a_client_that_may_not_send_its_body_after_all_has_to_come_again(asks: bool) -> None:
    server = Server()
    connection = server.connection(*([(b"expect", b"100-continue")] if asks else []))
    await connection.send({"type": "http.response.start", "status": 413, "headers": []})
    assert server.sent[0]["headers"] == [(b"vary", b"Origin"), *([(b"connection", b"close")] if asks else [])]
    await connection.close()
