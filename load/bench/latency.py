"""Time from sending a publish until the last of 100 readers has it, at a fixed rate, compared with Nchan."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from dataclasses import dataclass, field
from typing import cast

import msgspec

from load.bench import faces
from load.bench.faces import Face
from load.bench.peers import nchan
from load.drill import say
from load.figure import Figure, UnfitError, quantile, versus
from load.server import serving
from load.waiting import PATIENCE_S, in_time
from load.wire import Connection

READERS = 100
RATE = 500
"""Messages per second."""

PUBLISHERS = 32
GOAL = 2.0
NUMBER = re.compile(rb'"n":\s*(\d+)')


@dataclass(slots=True)
class Board:
    """For each message: when it was sent, when its last reader got it (seconds), and how many have it."""

    size: int
    sent: array[float] = field(init=False)
    last: array[float] = field(init=False)
    readers: array[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sent = array("d", bytes(8 * self.size))
        self.last = array("d", bytes(8 * self.size))
        self.readers = array("i", bytes(4 * self.size))

    def arrive(self, number: int, now: float) -> None:
        """Note that one reader has message `number`."""
        self.readers[number] += 1
        self.last[number] = now

    def quantile(self, share: float) -> float:
        """A quantile of the latencies, in milliseconds. The first tenth, the warm-up, does not count."""
        spans = [last - sent for last, sent in zip(self.last, self.sent, strict=True)]
        return 1000 * quantile(spans[self.size // 10 :], share)


class Watcher(asyncio.Protocol):
    """A reader that notes the arrival of each message by the number in its data."""

    def __init__(self, request: bytes, live_mark: bytes, board: Board) -> None:
        self._request, self._live_mark, self._board = request, live_mark, board
        self._rest = b""
        self.live = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        now = time.perf_counter()
        data = self._rest + data
        whole, mark, self._rest = data.rpartition(b"\n\n")
        if not self.live.is_set() and self._live_mark in data:
            self.live.set()
        for number in NUMBER.findall(whole + mark):
            self._board.arrive(int(number), now)


async def measure(face: Face, channel: str, seconds: float) -> Board:
    """Publish at the rate for so many seconds. Raises UnfitError unless all readers get each message once."""
    board = Board(int(RATE * seconds))
    request = face.subscribe(channel)
    watchers = [
        await face.target.connect(lambda: Watcher(request, face.live_mark, board)) for _ in range(READERS)
    ]
    await in_time(asyncio.gather(*(watcher.live.wait() for watcher in watchers)))
    await _publish(face, channel, board)
    await faces.all_delivered(lambda: min(board.readers) >= READERS, PATIENCE_S)
    for watcher in watchers:
        if watcher.transport is not None:
            watcher.transport.abort()
    if set(board.readers) != {READERS}:
        raise UnfitError(
            f"{face.name}: messages reached between {min(board.readers)} and {max(board.readers)} readers"
        )
    return board


async def _publish(face: Face, channel: str, board: Board) -> None:
    """Send each message at its time. Its latency includes the wait for a free connection."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(PUBLISHERS):
        free.put_nowait(await Connection.open(face.target))
    started = time.perf_counter()

    async def send(number: int) -> None:
        board.sent[number] = time.perf_counter()
        connection = await free.get()
        body = msgspec.json.encode(
            {"data": {"n": number, "text": "How long until the last one hears of this?"}}
        )
        answer = await connection.ask(face.publish(channel, body))
        if answer.status not in face.accepted:
            raise UnfitError(f"{face.name}: a publish was answered {answer.status} {answer.body[:200]!r}")
        free.put_nowait(connection)

    async with asyncio.TaskGroup() as sends:
        for number in range(board.size):
            await asyncio.sleep(started + number / RATE - time.perf_counter())
            sends.create_task(send(number))
    while not free.empty():
        free.get_nowait().close()


async def run(short: bool) -> list[Figure]:
    """Measure both servers in turn."""
    seconds, rounds = (3.0, 2) if short else (10.0, 3)
    quantiles: dict[str, list[tuple[float, float]]] = {"p50": [], "p99": []}
    with nchan() as peer:
        async with serving() as server:
            ours, theirs = faces.gapless(server.target), faces.nchan(peer)
            for number in range(rounds):
                mine = await measure(ours, f"bench.latency.{number}", seconds)
                peers = await measure(theirs, f"bench.latency.{number}", seconds)
                for name, share in (("p50", 0.5), ("p99", 0.99)):
                    pair = (mine.quantile(share), peers.quantile(share))
                    quantiles[name].append(pair)
                    say(f"latency, round {number + 1}, {name}: {pair[0]:.2f} ms, Nchan {pair[1]:.2f} ms")
    checked = f"{RATE} messages/s; all {READERS} readers got each message once"
    p50, p99 = quantiles["p50"], quantiles["p99"]
    return [
        versus("latency p50", "ms", p50, float("inf"), "no goal; for comparison", more=False),
        versus("latency p99", "ms", p99, GOAL, checked, more=False),
    ]
