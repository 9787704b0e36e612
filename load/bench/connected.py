"""Confirmed publishes in flight over one WebSocket, against three peers.

They are a route that stores nothing, with the 64 HTTP connections of `publish`; one bare SQL statement that
stores as many messages as are in flight; and NATS JetStream with `nats-py`, which does not sync each write.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from typing import Final

from load.bench import publish
from load.bench.batch import sessions_of, through_sql
from load.bench.cost import Cost
from load.bench.peers import jetstream, plain, through_jetstream
from load.bench.publish import CHANNELS, stored
from load.drill import say
from load.figure import Figure, UnfitError, versus
from load.server import serving
from load.waiting import in_time
from load.websocket import Stream, handshake
from load.wire import Target

IN_FLIGHT: Final = (64, 256)
NO_GOAL: Final = float("inf")
GOALS: Final = {"plain FastAPI": NO_GOAL, "bare SQL": 0.5, "JetStream": NO_GOAL}
COMMAND: Final = (
    b'{"id":%d,"publish":{"channel":"%b","data":'
    b'{"text":"The quick brown fox jumps over the lazy dog, and is confirmed."}}}'
)


class Publisher(Stream):
    """One connection that keeps `in_flight` publishes unanswered until `stop`, and counts their replies."""

    def __init__(self, target: Target, in_flight: int, outcomes: Counter[str]) -> None:
        self.idle = asyncio.Event()
        self.stopped = False
        self._waiting = 0
        self._next = 1
        self._in_flight = in_flight
        self._outcomes = outcomes
        super().__init__(handshake(target, "/v1/ws"), self._opened, self._take, self.idle.set)

    def stop(self) -> None:
        """Publish nothing more; `idle` is set once all replies are there."""
        self.stopped = True

    def _opened(self, status: int, head: bytes) -> None:
        self.send(b'{"id":1,"connect":{}}')

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == b"{}":
                self.send(b"{}")
            elif b'"connect"' not in line:
                self._outcomes["confirmed" if b'"publish"' in line else line.decode()] += 1
                self._waiting -= 1
        if not self.stopped:
            wanted = self._in_flight - self._waiting
            for _ in range(wanted):
                self._next += 1
                self.send(COMMAND % (self._next, CHANNELS[self._next % len(CHANNELS)].encode()))
            self._waiting += wanted
        elif not self._waiting:
            self.idle.set()


async def rate(target: Target, in_flight: int, seconds: float, outcomes: Counter[str]) -> float:
    """Confirmed publishes per second; every reply is waited for."""
    before, started = outcomes["confirmed"], time.perf_counter()
    publisher = await target.connect(lambda: Publisher(target, in_flight, outcomes))
    await asyncio.sleep(seconds)
    publisher.stop()
    await in_time(publisher.idle.wait())
    took = time.perf_counter() - started
    publisher.abort()
    return (outcomes["confirmed"] - before) / took


async def run(short: bool) -> list[Figure]:
    """Rounds in turn; then as many messages must be stored as were confirmed."""
    seconds, rounds = (1.5, 2) if short else (4.0, 4)
    outcomes: Counter[str] = Counter()
    theirs: Counter[int] = Counter()
    pairs: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    with plain() as peer, jetstream() as nats:
        async with serving() as server:
            sessions = await sessions_of(server)
            await rate(server.target, IN_FLIGHT[0], 1.0, outcomes)
            await publish.rate(peer, 1.0, theirs)
            costs = {in_flight: Cost(server) for in_flight in IN_FLIGHT}
            for number in range(rounds):
                for in_flight in IN_FLIGHT:
                    before = outcomes["confirmed"]
                    with costs[in_flight]:
                        ours = await rate(server.target, in_flight, seconds, outcomes)
                    costs[in_flight].operations += outcomes["confirmed"] - before
                    rates = {
                        "plain FastAPI": await publish.rate(peer, seconds, theirs),
                        "bare SQL": await through_sql(sessions[:1], seconds, in_flight),
                        "JetStream": await asyncio.to_thread(through_jetstream, nats, in_flight, seconds),
                    }
                    for name, their in rates.items():
                        pairs[in_flight, name].append((ours, their))
                    said = ", ".join(f"{name} {their:,.0f}/s" for name, their in rates.items())
                    say(f"websocket, {in_flight} in flight, round {number + 1}: {ours:,.0f}/s, {said}")
            held = await stored(server)
            for session in sessions:
                await session.close()
    if set(outcomes) != {"confirmed"} or held != outcomes["confirmed"]:
        raise UnfitError(f"outcomes {dict(outcomes)}, {held} stored")
    checked = f"{held:,} confirmed and stored"
    return [
        versus(f"websocket {n}, {name}", "confirmed/s", found, GOALS[name], checked, cost=costs[n])
        for (n, name), found in sorted(pairs.items())
    ]
