"""Publishing and consuming at once: a backlog that is kept filled, and what both sides have done so far."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import msgspec

from load.bench.queue.crew import Word
from load.bench.queue.samples import Record
from load.figure import UnfitError
from load.server import Server
from load.wire import Connection

CHANNEL = "bench.bloat"
KEYS = 10_000
BATCH = 1000
BACKLOG = 20_000
"""The publisher waits while so many are not acked yet: both sides stay busy, and the run is steady."""


@dataclass(slots=True)
class Flow:
    """What was published and acked so far, as the publisher and the members say."""

    record: Record = field(default_factory=Record)
    published: int = 0
    shares: dict[int, int] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _started: float = 0.0

    @property
    def acked(self) -> int:
        """By all members."""
        return sum(self.shares.values())

    def start(self) -> None:
        """From here time counts."""
        self._started = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    async def second(self) -> None:
        """Wait until the next whole second since the start."""
        await asyncio.sleep(1 - self.now() % 1)

    def hear(self, number: int, word: Word) -> None:
        """Take one process's word; its pulls are of the last twentieth of a second."""
        now = self.now()
        self.shares[number] = word["acked"]
        self.record.pulls += [(now, ms) for ms in word["pulls"]]
        self.news.set()


async def publish(server: Server, flow: Flow, messages: int) -> None:
    """Keep the backlog filled until all is published."""
    connection = await Connection.open(server.target)
    path = f"/v1/channels/{CHANNEL}/messages"
    bodies = [
        msgspec.json.encode([{"key": f"k{n}", "data": n} for n in range(start, start + BATCH)])
        for start in range(0, KEYS, BATCH)
    ]
    requests = [server.target.request("POST", path, body) for body in bodies]
    while flow.published < messages:
        while flow.published - flow.acked >= BACKLOG:
            flow.news.clear()
            await flow.news.wait()
        answer = await connection.ask(requests[flow.published // BATCH % len(requests)])
        if answer.status != 201:
            raise UnfitError(f"a batch was answered {answer.status} {answer.body[:300]!r}")
        flow.published += BATCH
    connection.close()
