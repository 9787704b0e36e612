"""Presence on a crowded channel: what a storm of joins costs publishes, and what questions cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from load.drill import say
from load.figure import Figure, UnfitError, quantile
from load.server import Server, serving
from load.waiting import in_time, until
from load.websocket import Stream, handshake
from load.wire import Connection

CROWD = 10_000
STORM = 2000
STORM_S = 5.0
CHANNEL = "bench.presence"
CONNECT_AT_ONCE = 200
PAUSE_S = 0.004
ASKED = 20
GOAL = 1.5
"""The p99 of publishes in the storm, as a multiple of that before it."""

_CONNECT = b'{"id":1,"connect":{}}'
_SUBSCRIBE = msgspec.json.encode({"id": 2, "subscribe": {"channel": CHANNEL, "join_leave": True}})


class Client:
    """A WebSocket client that follows the channel once `subscribe` was called."""

    def __init__(self) -> None:
        self.connected = asyncio.get_running_loop().create_future()
        self.follows = asyncio.get_running_loop().create_future()
        self.told = 0
        self.lost = False
        self._stream: Stream | None = None

    async def open(self, server: Server) -> None:
        """Connect, and wait for the answer."""

        def opened(status: int, head: bytes) -> None:
            stream.send(_CONNECT)

        stream = self._stream = Stream(handshake(server.target, "/v1/ws"), opened, self._take, self._close)
        target = server.target
        await asyncio.get_running_loop().create_connection(lambda: stream, target.host, target.port)
        await in_time(self.connected)

    def subscribe(self) -> None:
        """Follow the channel."""
        assert self._stream is not None, "it is open"
        self._stream.send(_SUBSCRIBE)

    def drop(self) -> None:
        """End the connection."""
        if self._stream is not None:
            self._stream.abort()

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == b"{}" and self._stream is not None:
                self._stream.send(b"{}")
            elif line.startswith(b'{"id":1,"connect"'):
                self.connected.set_result(None)
            elif line.startswith(b'{"id":2,"subscribe"'):
                self.follows.set_result(None)
            elif b'"presence"' in line or b'"join"' in line:
                self.told += 1

    def _close(self) -> None:
        self.lost = True


async def opened(server: Server, count: int) -> list[Client]:
    """So many clients, connected."""
    slots = asyncio.Semaphore(CONNECT_AT_ONCE)

    async def one() -> Client:
        async with slots:
            client = Client()
            await client.open(server)
            return client

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def publishing(server: Server, stop: Callable[[], bool]) -> list[float]:
    """The milliseconds of publishes to another channel, one after the other."""
    connection = await Connection.open(server.target)
    request = server.target.request("POST", "/v1/channels/bench.other/messages", b'{"data":1}')
    took = []
    while not stop():
        began = time.perf_counter()
        answer = await connection.ask(request)
        took.append((time.perf_counter() - began) * 1000)
        if answer.status != 201:
            raise UnfitError(f"a publish was answered {answer.status} {answer.body[:200]!r}")
        await asyncio.sleep(PAUSE_S)
    connection.close()
    return took


async def storm(clients: Sequence[Client], seconds: float) -> None:
    """All of them subscribe, evenly within the time, and follow."""
    began = time.perf_counter()
    for number, client in enumerate(clients):
        client.subscribe()
        await asyncio.sleep(max(0.0, began + (number + 1) * seconds / len(clients) - time.perf_counter()))
    await in_time(asyncio.gather(*(client.follows for client in clients)))


async def asking(server: Server, path: str) -> tuple[float, dict[str, object]]:
    """The median milliseconds of a question, and its last answer."""
    connection = await Connection.open(server.target)
    took, found = [], {}
    for _ in range(ASKED):
        began = time.perf_counter()
        answer = await connection.ask(server.target.request("GET", path))
        took.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise UnfitError(f"presence was answered {answer.status} {answer.body[:200]!r}")
        found = msgspec.json.decode(answer.body)
    connection.close()
    return quantile(took, 0.5), found


async def run(short: bool) -> list[Figure]:
    """A crowd that follows, publishes before the storm and in it, then questions."""
    crowd, joining, seconds = (2000, 400, 3.0) if short else (CROWD, STORM, STORM_S)
    path = f"/v1/channels/{CHANNEL}/presence"
    async with serving(max_streams="20000") as server:
        clients = await opened(server, crowd + joining)
        await storm(clients[:crowd], crowd / 500)

        async def all_shown() -> bool:
            return (await asking(server, f"{path}?limit=1"))[1]["num_clients"] == crowd

        await until(all_shown, "everybody is shown")
        await asyncio.sleep(3)  # What the crowd is told of itself is over.
        deadline = time.perf_counter() + seconds
        before = await publishing(server, lambda: time.perf_counter() > deadline)
        storming = asyncio.create_task(storm(clients[crowd:], seconds))
        during = await publishing(server, storming.done)
        await storming
        page_ms, page = await asking(server, f"{path}?limit=1000")
        stats_ms, stats = await asking(server, f"{path}?limit=1")
        told, lost = min(client.told for client in clients[:crowd]), sum(client.lost for client in clients)
        for client in clients:
            client.drop()
    listed = page["clients"]
    assert isinstance(listed, list), "a page has clients"
    if lost or stats["num_clients"] != crowd + joining or len(listed) != min(1000, crowd + joining):
        raise UnfitError(f"{lost} clients were lost, {stats['num_clients']} shown, {len(listed)} on a page")
    if not told:
        raise UnfitError("a client was told of nobody")
    return figures(crowd, joining, before, during, page_ms, stats_ms)


def figures(
    crowd: int, joining: int, before: list[float], during: list[float], page_ms: float, stats_ms: float
) -> list[Figure]:
    """The figures, from milliseconds."""
    quiet, stormy = quantile(before, 0.99), quantile(during, 0.99)
    say(
        f"presence: publishes before the storm p50 {quantile(before, 0.5):.2f} ms, p99 {quiet:.2f} ms; in it "
        f"p50 {quantile(during, 0.5):.2f} ms, p99 {stormy:.2f} ms"
    )
    checked = (
        f"{joining:,} joined {crowd:,}; all were shown and told; {len(before)} and {len(during)} publishes"
    )
    none = float("inf")
    return [
        Figure("publish p99, join storm", stormy, quiet, "ms", stormy / quiet, GOAL, False, checked),
        Figure("presence, a page of 1000", page_ms, None, "ms", page_ms, none, False, "as many as there are"),
        Figure("presence, a page of 1", stats_ms, None, "ms", stats_ms, none, False, "all were counted"),
    ]
