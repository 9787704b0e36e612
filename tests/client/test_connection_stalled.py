"""Commands over WebSocket while the network takes nothing: what is not sent in time, and what goes first."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from gapless import AsyncClient, AsyncConnection, Message, Published, RetryPolicy, Unreachable

from tests.client.conftest import Later, turns
from tests.client.faces import Time
from tests.client.push_server import PushServer, Speaker
from tests.client.raw_server import RawServer
from tests.patience import PATIENCE_S, cancel, eventually

BLOCK = "x" * (1024 * 1024)
"""More than the sockets hold while the server takes nothing."""


class StallingServer(PushServer):
    """A server that takes nothing after `connect` and the subscriptions until `going` is set."""

    def __init__(self, raw: RawServer, subscriptions: int = 0) -> None:
        super().__init__(raw)
        self.subscriptions = subscriptions
        self.stalled = threading.Event()
        self.going = threading.Event()
        self.talks = [self.stall]
        self.ping = 10 * PATIENCE_S

    def stall(self, speaker: Speaker) -> None:
        speaker.narrow()
        self.connect(speaker)
        names = []
        for _ in range(self.subscriptions):
            command = next(speaker.commands)
            speaker.reply(command, subscribe={"offset": 0})
            names.append(command["subscribe"]["channel"])
        assert self.stalled.wait(PATIENCE_S)
        for name in names:
            speaker.say({}, self.push(name, 3))
        assert self.going.wait(PATIENCE_S)
        self.serve(speaker)


@pytest.fixture
def server(raw_server: RawServer) -> Iterator[StallingServer]:
    server = StallingServer(raw_server)
    yield server
    server.stalled.set()
    server.going.set()


async def stall(server: StallingServer, connection: AsyncConnection) -> asyncio.Task[Published]:
    """A publish that is on its way until the server goes on: what follows waits to be sent."""
    link = await connection.link()
    raw: socket.socket = link._socket.transport.get_extra_info("socket")  # type: ignore[union-attr]
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024)
    blocking = asyncio.create_task(connection.publish("a", BLOCK))
    await eventually(lambda: any(asked.sent for asked in link._asked.values()))  # type: ignore[union-attr]
    server.stalled.set()
    return blocking


def published(server: PushServer) -> list[Any]:
    """What the server was given to store, without the block."""
    return [body["data"] for body in server.bodies("publish") if body["data"] != BLOCK]


async def test_what_is_not_sent_in_time_is_sent_once_when_it_is_repeated(
    server: StallingServer, later: Later
) -> None:
    time = Time()
    async with (
        AsyncClient(server.url, effects=time.async_effects(), timeout=PATIENCE_S) as client,
        client.connect() as connection,
    ):
        blocking = await stall(server, connection)
        second = asyncio.create_task(connection.publish("a", 2))
        await turns()
        later(1.1 * PATIENCE_S)
        with pytest.raises(Unreachable):
            await blocking
        await eventually(lambda: time.waits)
        server.going.set()
        assert (await second).channel == "a"
        await connection.publish("a", 3)
    assert published(server) == [2, 3]


async def test_what_failed_because_it_was_not_sent_is_never_sent(
    server: StallingServer, later: Later
) -> None:
    options: dict[str, Any] = {"effects": Time().async_effects(), "retry": RetryPolicy(attempts=1)}
    async with (
        AsyncClient(server.url, timeout=PATIENCE_S, **options) as client,
        client.connect() as connection,
    ):
        publishes = [await stall(server, connection)]
        publishes += [asyncio.create_task(connection.publish("a", n)) for n in range(5)]
        await turns()
        later(1.1 * PATIENCE_S)
        found = await asyncio.gather(*publishes, return_exceptions=True)
        assert [type(one) for one in found] == [Unreachable] * 6
        server.going.set()
        await connection.publish("a", 5)
    assert published(server) == [5]


async def test_what_is_cancelled_before_it_is_sent_is_never_sent(server: StallingServer) -> None:
    async with AsyncClient(server.url, timeout=PATIENCE_S) as client, client.connect() as connection:
        blocking = await stall(server, connection)
        others = [asyncio.create_task(connection.publish("a", n)) for n in range(3)]
        opening = asyncio.create_task(connection.consume("orders").__aenter__())
        await turns()
        await cancel(others[1], opening)
        server.going.set()
        await asyncio.gather(blocking, others[0], others[2])
    assert published(server) == [0, 2]
    assert server.bodies("consume") == server.bodies("unconsume") == []


async def test_a_pong_and_a_subscription_go_before_the_publishes_that_wait(server: StallingServer) -> None:
    server.subscriptions = 1
    async with AsyncClient(server.url, timeout=PATIENCE_S) as client, client.connect() as connection:
        stream = await connection.subscribe("a", start=0).__aenter__()
        blocking = await stall(server, connection)
        publishes = [asyncio.create_task(connection.publish("a", n)) for n in range(2000)]
        found = await anext(stream)
        assert isinstance(found, Message), "by now the ping has come, too"
        opening = asyncio.create_task(connection.subscribe("b", start=0).__aenter__())
        await turns()
        server.going.set()
        await asyncio.gather(blocking, opening, *publishes)
    # The block was on its way before them.
    assert [next(iter(command.keys() - {"id"}), "pong") for command in server.heard[1:5]] == [
        "publish",
        "pong",
        "subscribe",
        "publish",
    ]
    assert published(server) == list(range(2000))
