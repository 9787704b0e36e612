"""Gapless under the same work: messages published over HTTP, a subscription, members that drain it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from load.bench.queue.crew import Word, crew
from load.bench.queue.rivals import PATIENCE, spread
from load.figure import UnfitError
from load.server import Server
from load.waiting import PATIENCE_S
from load.wire import Connection

CHUNK = 1000
IN_FLIGHT = 4000
"""Room for sixteen members with two batches each."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: so many messages with so many keys (0: each its own), taken with an ordering."""

    name: str
    ordering: str
    messages: int
    keys: int = 0

    @property
    def channel(self) -> str:
        """Where its messages are: of the same keys, the same ones."""
        return f"bench.queue.{self.keys or 'own'}"

    def body(self, start: int) -> bytes:
        """One batch of it, from this number on."""
        numbers = range(start, min(start + CHUNK, self.messages))
        keys = self.keys or self.messages
        return msgspec.json.encode([{"key": f"k{n % keys}", "data": {"n": n}} for n in numbers])


async def ask(connection: Connection, server: Server, method: str, path: str, body: Any, status: int) -> Any:
    """The JSON of the answer that must have this status."""
    data = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    answer = await connection.ask(server.target.request(method, path, data))
    if answer.status != status:
        raise UnfitError(f"{method} {path} was answered {answer.status} {answer.body[:300]!r}")
    return msgspec.json.decode(answer.body) if answer.body else None


async def preload(server: Server, work: Work) -> int:
    """Publish all of it; the sum of the ids."""
    connection = await Connection.open(server.target)
    total = 0
    for start in range(0, work.messages, CHUNK):
        path = f"/v1/channels/{work.channel}/messages"
        answer = await ask(connection, server, "POST", path, work.body(start), 201)
        total += sum(message["id"] for message in answer["messages"])
    connection.close()
    return total


async def subscribe(server: Server, channel: str, ordering: str) -> str:
    """A new subscription to all of a channel; its name."""
    name = f"bench.{next(_numbers)}"
    definition = {
        "channels": [channel],
        "start": "earliest",
        "ordering": ordering,
        "max_in_flight": IN_FLIGHT,
    }
    connection = await Connection.open(server.target)
    await ask(connection, server, "PUT", f"/v1/subscriptions/{name}", definition, 201)
    connection.close()
    return name


async def settle_up(server: Server, name: str, messages: int) -> None:
    """See that the subscription counts so many acked and nothing left, and delete it."""
    connection = await Connection.open(server.target)
    stats = (await ask(connection, server, "GET", f"/v1/subscriptions/{name}", None, 200))["stats"]
    await ask(connection, server, "DELETE", f"/v1/subscriptions/{name}", None, 204)
    connection.close()
    if (stats["acked"], stats["lag"], stats["in_flight"]) != (messages, 0, 0):
        raise UnfitError(f"{messages} messages were acked, and the subscription counts {stats}")


def commands(server: Server, name: str, members: int) -> list[list[str]]:
    """The processes of so many members."""
    at = [server.target.host, str(server.target.port)]
    return [
        [sys.executable, "-m", "load.bench.queue.member", *at, name, str(share)] for share in spread(members)
    ]


async def rate(server: Server, work: Work, id_sum: int, members: int) -> tuple[float, float]:
    """Messages acked a second, from the starting gun until the answer to the last ack; messages a batch."""
    name = await subscribe(server, work.channel, work.ordering)
    acked: dict[int, int] = {}
    finished = asyncio.Event()
    async with crew(commands(server, name, members), _counter(acked, work.messages, finished)) as workers:
        started = workers.go()
        deadline = time.monotonic() + PATIENCE
        while not finished.is_set() and time.monotonic() < deadline and workers.running():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await finished.wait()
        workers.stop()
        reports = await workers.reports(PATIENCE_S)
    done, ids = sum(report["done"] for report in reports), sum(report["sum"] for report in reports)
    if (done, ids) != (work.messages, id_sum):
        raise UnfitError(f"{done} of {work.messages} messages were acked, or not each of them once")
    await settle_up(server, name, work.messages)
    seconds = max(report["end"] for report in reports) - started
    return done / seconds, done / sum(report["batches"] for report in reports)


def _counter(acked: dict[int, int], messages: int, finished: asyncio.Event) -> Callable[[int, Word], None]:
    def hear(number: int, word: Word) -> None:
        acked[number] = word["acked"]
        if sum(acked.values()) >= messages:
            finished.set()

    return hear
